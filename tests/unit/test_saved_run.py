"""What a start does with the logs of a run that has no checkpoint."""

import dataclasses

import pytest

from resnet.base.errors import UserError
from resnet.checkpoint.step_dirs import of_step
from resnet.config.config import CONFIG_FILE, save_config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.training import saved_run
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
    saved_run.set_aside_unsaved(logged)
    kept = {CONFIG_FILE, jsonl.FILE, "predictions"}
    assert names_in(logged) == {CONFIG_FILE, history.FILE, "unsaved-1"}
    assert names_in(logged / "unsaved-1") == kept
    assert names_in(logged / "unsaved-1" / "predictions") == {"eval.npz"}
    assert (logged / "unsaved-1" / jsonl.FILE).read_text() == LINE
    assert f"is in {logged / 'unsaved-1'} now" in caplog.text

    (logged / jsonl.FILE).write_text("")
    saved_run.set_aside_unsaved(logged)  # There is nothing to keep.
    assert "unsaved-2" not in names_in(logged)
    (logged / jsonl.FILE).write_text(LINE)
    saved_run.set_aside_unsaved(logged)
    assert names_in(logged / "unsaved-2") == {CONFIG_FILE, jsonl.FILE}


def test_a_run_that_has_ended_is_not_started_again_without_its_checkpoints(logged):
    history.append(logged, "end", step=10, reason="the training is done")
    before = names_in(logged)
    with pytest.raises(UserError, match="has ended after step 10; there are none"):
        saved_run.set_aside_unsaved(logged)
    assert names_in(logged) == before


def test_the_logs_of_a_run_with_a_checkpoint_stay(logged):
    of_step(logged, 10).mkdir(parents=True)
    history.append(logged, "end", step=10, reason="the training is done")
    before = names_in(logged)
    saved_run.set_aside_unsaved(logged)
    assert names_in(logged) == before


def test_a_saved_run_continues_with_what_it_measured_and_refuses_other_settings(
    tmp_path,
):
    given = {"model_dir": str(tmp_path), "precision": "auto"}
    config = resolve(RECIPES["digits"], given, 1437, ("a", "b"))
    assert saved_run.match_saved_run(config) == {}
    save_config(dataclasses.replace(config, precision="bf16"))
    assert saved_run.match_saved_run(config) == {}  # It has no checkpoint.
    of_step(tmp_path, 10).mkdir(parents=True)
    assert saved_run.match_saved_run(config) == {
        "precision": "bf16",
        "exchange": "auto",
    }
    with pytest.raises(UserError, match=r"\(seed=0, now 1\)"):
        saved_run.match_saved_run(dataclasses.replace(config, seed=1))
