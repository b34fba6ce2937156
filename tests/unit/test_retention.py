"""Which checkpoints are kept, and which one is the best or ends the run."""

import shutil

import pytest

from resnet.checkpoint import retention, step_dirs
from resnet.checkpoint.retention import Saved
from resnet.checkpoint.step_dirs import of_step, saved_steps
from tests.unit.small_checkpoint import save


def evaluated(step: int, top1: float | None) -> Saved:
    return Saved(step, {} if top1 is None else {"eval": {"top1": top1}})


def test_the_newest_the_best_and_the_ends_of_phases_are_kept():
    accuracies = [0.5, 0.75, 0.75, 0.25, None, 0.1]
    saved = [evaluated(step, top1) for step, top1 in enumerate(accuracies, 1)]
    assert retention.best_step(saved) == 3
    assert retention.steps_to_remove(saved, 2) == [1, 2, 4]
    saved[1] = Saved(2, {"ends_phase": "init"})
    assert retention.phase_ends(saved) == {2: "init"}
    assert retention.steps_to_remove(saved, 1) == [1, 4, 5]
    assert retention.steps_to_remove(saved, 9) == []
    assert retention.best_step([evaluated(1, None)]) is None


def test_the_newest_checkpoint_says_by_which_metric_one_is_the_best():
    results = [{"top1": 0.75, "macro_f1": 0.25}, {"top1": 0.5, "macro_f1": 0.5}]
    saved = [Saved(step, {"eval": numbers}) for step, numbers in enumerate(results, 1)]
    assert retention.best_step(saved) == 1
    newest = Saved(3, {"config": {"best_metric": "macro_f1"}})
    assert retention.best_step([*saved, newest]) == 2
    assert retention.best_step([*saved, newest, Saved(4, {})]) == 2  # It is corrupt.
    assert retention.steps_to_remove([*saved, newest], 1) == [1]


def test_saving_removes_what_is_not_kept(tmp_path):
    save(tmp_path, 1, keep=1, eval={"top1": 0.75})
    save(tmp_path, 2, keep=1, ends_phase="init")
    save(tmp_path, 3, keep=1, eval={"top1": 0.5})
    save(tmp_path, 4, keep=2)
    save(tmp_path, 5, keep=2)
    assert saved_steps(tmp_path) == [1, 2, 4, 5]


def test_a_corrupt_one_is_neither_best_nor_the_end_of_a_phase(tmp_path):
    folder = save(tmp_path, 1, ends_phase="init", eval={"top1": 0.75})
    save(tmp_path, 2, eval={"top1": 0.5})
    (folder / step_dirs.CONTENTS_FILE).write_bytes(b"")
    saved = retention.list_saved(tmp_path)
    assert [one.step for one in saved] == [1, 2]
    assert retention.best_step(saved) == 2
    assert retention.phase_ends(saved) == {}
    assert not retention.ends_run(tmp_path, 1, 7)
    assert retention.ends_run(tmp_path, 1, 1)


@pytest.mark.parametrize(
    ("metadata", "stop_at", "ends"),
    [
        ({"eval": {"top1": 0.5}}, 0.5, True),
        ({"eval": {"top1": 0.25}, "eval_ema": {"top1": 0.75}}, 0.5, True),
        ({"eval": {"top1": 0.375}}, 0.5, False),
        ({"eval": {"top1": 0.75}}, 0.0, False),
        ({}, 0.5, False),
    ],
)
def test_a_run_ends_at_its_last_step_or_its_target(
    tmp_path, make_config, metadata, stop_at, ends
):
    save(tmp_path, 3, **metadata)
    config = make_config(stop_at=stop_at, eval_every="1epoch", mode="train_and_eval")
    assert retention.ends_run(tmp_path, 3, 7, config) is ends
    save(tmp_path, 4, config={"stop_at": stop_at}, **metadata)
    assert retention.ends_run(tmp_path, 4, 7) is ends
    assert retention.ends_run(tmp_path, 4, 4)


def test_a_copy_with_a_later_name_counts_for_nothing(tmp_path):
    shutil.copytree(save(tmp_path, 42), of_step(tmp_path, 99_999_999))
    assert not retention.ends_run(tmp_path, 99_999_999, 100)
    save(tmp_path, 43, keep=1)
    assert saved_steps(tmp_path) == [43, 99_999_999]
