"""What a start does with the folder of its run."""

import dataclasses
import os

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint.step_dirs import of_step
from resnet.config.config import CONFIG_FILE, save_config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.training import run_folder
from resnet.watchdog import history

LINE = jsonl.encode(jsonl.make_line("eval", 10, 1.0, {"top1": 0.5}))


@pytest.fixture
def logged(tmp_path):
    """The folder of a run that has been evaluated, without a checkpoint."""
    history.append(tmp_path, "start", step=0)
    (tmp_path / CONFIG_FILE).write_text("{}")
    (tmp_path / jsonl.FILE).write_text(LINE)
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "eval.npz").touch()
    return tmp_path


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_logged_before_the_first_checkpoint_is_kept(logged, caplog):
    run_folder.set_aside_unsaved(logged)
    kept = {CONFIG_FILE, jsonl.FILE, "predictions"}
    assert names_in(logged) == {CONFIG_FILE, history.FILE, "unsaved-1"}
    assert names_in(logged / "unsaved-1") == kept
    assert names_in(logged / "unsaved-1" / "predictions") == {"eval.npz"}
    assert (logged / "unsaved-1" / jsonl.FILE).read_text() == LINE
    assert f"is in {logged / 'unsaved-1'} now" in caplog.text

    (logged / jsonl.FILE).write_text("")
    run_folder.set_aside_unsaved(logged)  # There is nothing to keep.
    assert "unsaved-2" not in names_in(logged)
    (logged / jsonl.FILE).write_text(LINE)
    run_folder.set_aside_unsaved(logged)
    assert names_in(logged / "unsaved-2") == {CONFIG_FILE, jsonl.FILE}


def test_a_run_that_has_ended_is_not_started_again_without_its_checkpoints(logged):
    history.append(logged, "end", step=10, reason="the training is done")
    before = names_in(logged)
    with pytest.raises(UserError, match="has ended after step 10; there are none"):
        run_folder.set_aside_unsaved(logged)
    assert names_in(logged) == before
    of_step(logged, 10).mkdir(parents=True)
    run_folder.set_aside_unsaved(logged)  # Nothing is set aside beside a checkpoint.
    assert names_in(logged) == {*before, "checkpoints"}


def test_a_saved_run_continues_with_what_it_measured_and_refuses_other_settings(
    tmp_path,
):
    given = {"model_dir": str(tmp_path), "precision": "auto"}
    config = resolve(RECIPES["digits"], given, 1437, ("a", "b"))
    assert run_folder.match_saved_run(config) == {}
    save_config(dataclasses.replace(config, precision="bf16"))
    assert run_folder.match_saved_run(config) == {}  # It has no checkpoint.
    of_step(tmp_path, 10).mkdir(parents=True)
    assert run_folder.match_saved_run(config) == {
        "precision": "bf16",
        "exchange": "auto",
    }
    with pytest.raises(UserError, match=r"\(seed=0, now 1\)"):
        run_folder.match_saved_run(dataclasses.replace(config, seed=1))


def test_a_folder_is_created_with_its_parents(tmp_path):
    folder = tmp_path / "a" / "model"
    run_folder.make(str(folder))
    assert os.listdir(folder) == []
    (tmp_path / "large disk").mkdir()
    (folder / "checkpoints").symlink_to(tmp_path / "large disk")
    run_folder.make(str(folder))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (lambda path: path.symlink_to("gone"), "No such file"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
        (os.mkfifo, "Not a directory"),
    ],
    ids=["dangling link", "loop", "fifo"],
)
def test_checkpoints_that_cannot_be_a_folder_are_refused(tmp_path, place, reason):
    place(tmp_path / "checkpoints")
    with pytest.raises(UserError, match=f"checkpoints, in which .*: {reason}"):
        run_folder.make(str(tmp_path))


def test_a_name_that_tensorflow_cannot_write_is_refused(tmp_path):
    name = str(tmp_path / "model") + os.fsdecode(b"\xff")
    with pytest.raises(UserError, match=r"must be a name in UTF-8; got .*xff"):
        run_folder.make(name)
    assert os.listdir(tmp_path) == []


def test_a_path_too_long_for_the_files_of_a_run_is_refused(tmp_path):
    parts = ["d" * 250] * 20
    longest = str(tmp_path.joinpath(*parts))[:4080]
    with pytest.raises(UserError, match=r"can be written to; .*File name too long"):
        run_folder.make(longest)
    assert os.listdir(tmp_path) == []
    run_folder.make(str(tmp_path / ("m" * 255)))
