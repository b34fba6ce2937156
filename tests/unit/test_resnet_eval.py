"""What evaluation refuses, in one sentence and with exit code 2."""

import dataclasses
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from eval import checkpoint_choice, resnet_eval
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, step_dirs
from resnet.config.config import load_config, save_config
from resnet.runtime.run_lock import RunLock
from tests.in_process import assert_refused, run


@pytest.fixture(scope="module")
def validation_set(tmp_path_factory, write_tiny_set) -> Path:
    """A set of validation images alone."""
    folder = tmp_path_factory.mktemp("records")
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "JPEG")
    write_tiny_set(
        folder, [file.getvalue()] * 4, [0, 1, 2, 0], "abc", [4], "validation"
    )
    return folder


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, make_config) -> Path:
    """A run with two checkpoints, of which nothing but their names is read here."""
    folder = tmp_path_factory.mktemp("model")
    save_config(dataclasses.replace(make_config(), model_dir=str(folder)))
    for step in (10, 20):
        checkpoint = step_dirs.of_step(folder, step)
        checkpoint.mkdir(parents=True)
        integrity.write_contents(checkpoint, {}, {})
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpoints=newest"], "--checkpoints must be latest, best, all, phases"),
        (["--checkpoints=10,15"], "no checkpoint of step 15 is saved"),
        (["--checkpoints=best"], "evaluated no saved checkpoint"),
        (["--watch", "--watch_minutes=nan"], "--watch_minutes must be above 0"),
        (["--watch", "--combine=weights"], "--watch evaluates each checkpoint by"),
        (["--watch", "--checkpoints=best"], "--watch evaluates all checkpoints"),
        (["--weights=ema"], "--weights=ema needs a run with EMA weights"),
        (["--combine=weights"], "--checkpoints=latest is only that of step 20"),
        (["--checkpoints=phases"], "ends a phase of the recipe. Pass steps"),
        (["--recalibration_batches=2"], "needs training images"),
        (["--split=train"], "has no split 'train'"),
        (["--split=train", "--store_predictions"], "stores predictions for validation"),
        (["--json_file=/dev/null/x"], "--json_file"),
    ],
)
def test_flags_that_cannot_be_are_refused(validation_set, model_dir, flags, words):
    folders = (f"--data_dir={validation_set}", f"--model_dir={model_dir}")
    assert_refused(run(resnet_eval, *folders, *flags), words)


def test_statistics_that_a_run_is_not_trained_for_are_refused(
    validation_set, model_dir, tmp_path
):
    copy = tmp_path / "run"
    shutil.copytree(model_dir, copy)
    config = load_config(str(model_dir))
    frozen = dataclasses.replace(config.phases[0], freeze_batch_norm=True)
    folders = (f"--data_dir={validation_set}", f"--model_dir={copy}")
    for changes, excluding in (
        ({"phases": (frozen,)}, "freeze_batch_norm"),
        ({"sync_mode": "async"}, "--sync_mode=async"),
    ):
        save_config(dataclasses.replace(config, model_dir=str(copy), **changes))
        done = run(resnet_eval, *folders, "--recalibration_batches=2")
        assert_refused(done, f"excludes runs with {excluding}")


def test_records_that_are_not_those_of_the_run_are_told(make_config):
    both = ["validation", "train"]
    of_run = dataclasses.replace(make_config(), train_records_sha256="0" * 64)
    config = dataclasses.replace(of_run, validation_records_sha256="12" * 32)
    assert resnet_eval.other_records(of_run, of_run, both) == ""
    assert resnet_eval.other_records(config, of_run, both) == "12121212"
    assert resnet_eval.other_records(config, make_config(), both) == "12121212-00000000"


def test_missing_folders_are_asked_for():
    assert_refused(run(resnet_eval), "--data_dir is required")
    assert_refused(run(resnet_eval, "--data_dir=here"), "--model_dir is required")


def test_a_folder_that_is_no_run_is_refused(validation_set, tmp_path):
    flags = (f"--data_dir={validation_set}", f"--model_dir={tmp_path}")
    assert_refused(run(resnet_eval, *flags), "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"model": "resnet18"}))
    done = run(resnet_eval, *flags)
    assert_refused(done, "config.json must hold the settings of a training run")


@pytest.fixture
def four_checkpoints(tmp_path) -> Path:
    """A run of two phases, which kept four checkpoints."""
    facts = {
        10: {"eval": {"top1": 0.5}},
        20: {"eval": {"top1": 0.4}, "ends_phase": "warm"},
        30: {"eval": {"top1": 0.3}, "eval_ema": {"top1": 0.6}},
        40: {"ends_phase": "cold"},
    }
    for step, one in facts.items():
        folder = step_dirs.of_step(tmp_path, step)
        folder.mkdir(parents=True)
        integrity.write_contents(folder, one, {})
    return tmp_path


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        ("latest", [40]),
        ("best", [30]),
        ("all", [10, 20, 30, 40]),
        ("phases", [20, 40]),
        ("30,10,30", [10, 30]),
        ("20", [20]),
    ],
)
def test_the_names_and_numbers_are_steps(four_checkpoints, value, steps):
    requested = checkpoint_choice.parse(value)
    assert checkpoint_choice.choose(requested, four_checkpoints) == steps


@pytest.mark.parametrize("requested", ["latest", "best", "all", "phases", [10]])
def test_a_run_without_checkpoints_is_refused(tmp_path, requested):
    with pytest.raises(UserError, match="no checkpoint has been saved in"):
        checkpoint_choice.choose(requested, tmp_path)


def test_a_training_that_runs_is_named_and_when_its_first_checkpoint_comes(
    make_config, tmp_path
):
    config = make_config(model_dir=str(tmp_path), checkpoint_every="7minutes")
    save_config(config)
    lock = RunLock(tmp_path)
    with pytest.raises(UserError, match=r"\(process \d+ on .* every 7minutes and"):
        checkpoint_choice.choose("latest", tmp_path)
    lock.release()
    for _ in range(2):  # A lock file that a killed job has left says nothing.
        with pytest.raises(UserError, match=r"yet\. Start training first"):
            checkpoint_choice.choose("latest", tmp_path)
        (tmp_path / "lock").write_text("process 1 on a")
