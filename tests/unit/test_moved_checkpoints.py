"""Checkpoints whose folders are renamed, copied, or replaced while they are read."""

import json
import shutil

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint import integrity, retention, step_dirs, tensors
from resnet.checkpoint.step_dirs import of_step, saved_steps
from tests.unit.small_checkpoint import save


def forget_step(folder) -> None:
    """Makes a checkpoint one of an earlier version, whose metadata has no step."""
    contents = json.loads((folder / step_dirs.CONTENTS_FILE).read_text())
    metadata = contents[integrity.METADATA]
    assert metadata.pop(integrity.STEP) is not None
    integrity.write_contents(folder, metadata, contents["files"])


@pytest.mark.parametrize("is_earlier", [False, True])
def test_the_step_inside_a_folder_decides_not_its_name(tmp_path, caplog, is_earlier):
    save(tmp_path, 40)
    save(tmp_path, 42).rename(of_step(tmp_path, 80))
    if is_earlier:
        forget_step(of_step(tmp_path, 80))
    newest = tensors.load_newest(tmp_path, quarantine=True)
    assert newest.step == 40
    assert "it holds step 42: the folder was renamed or copied. Rename it to" in (
        caplog.text
    )
    assert saved_steps(tmp_path) == [40]
    assert (tmp_path / "checkpoints" / "damaged-step-00000080").is_dir()


def test_a_copy_named_as_the_last_step_does_not_end_the_run(tmp_path):
    shutil.copytree(save(tmp_path, 42), of_step(tmp_path, 99_999_999))
    assert not retention.ends_run(tmp_path, 99_999_999, 100)
    save(tmp_path, 100)
    assert retention.ends_run(tmp_path, 100, 100)


def test_a_copy_with_a_later_name_is_not_kept_in_place_of_the_newest(tmp_path):
    shutil.copytree(save(tmp_path, 42), of_step(tmp_path, 99_999_999))
    save(tmp_path, 43, keep=1)
    assert saved_steps(tmp_path) == [43, 99_999_999]


def test_a_checkpoint_may_have_another_kind_of_name(tmp_path):
    copy = shutil.copytree(save(tmp_path, 42), tmp_path / "best")
    assert tensors.load_from(copy).step == 42


@pytest.mark.parametrize("is_same_step", [False, True])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path, monkeypatch, caplog, is_same_step
):
    save(tmp_path, 1)
    load = tensors.load
    replaced = []

    def load_late(model_dir, step):
        if not replaced:
            replaced.append(step)
            shutil.rmtree(of_step(tmp_path, 1))
            save(tmp_path, 1 if is_same_step else 2)
            raise integrity.CorruptCheckpoint(of_step(tmp_path, 1), "half of it")
        return load(model_dir, step)

    monkeypatch.setattr(tensors, "load", load_late)
    assert tensors.load_newest(tmp_path).step == (1 if is_same_step else 2)
    assert caplog.text == ""


def test_checkpoints_that_are_always_replaced_are_a_sentence(tmp_path, monkeypatch):
    step = iter(range(1, 1000))
    save(tmp_path, next(step))

    def load_late(model_dir, old):
        shutil.rmtree(of_step(tmp_path, old))
        of_step(tmp_path, next(step)).mkdir()
        raise integrity.CorruptCheckpoint(of_step(tmp_path, old), "half of it")

    monkeypatch.setattr(tensors, "load", load_late)
    with pytest.raises(UserError, match="are replaced faster than they can be read"):
        tensors.load_newest(tmp_path)
