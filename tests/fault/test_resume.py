"""A resumed run is bit for bit the run that was interrupted."""

import json
import signal

import numpy as np
import pytest

from resnet.checkpoint import tensors
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests.main_run import read_metrics

pytestmark = pytest.mark.fault

DONE_SECONDS = 200.0
FLAGS = ("--train_steps=30", "--checkpoint_every=10steps")


def read_order(folder) -> dict[int, list[int]]:
    """Returns the records of each global batch, as the ranks have logged them."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.iterdir()):  # By starts, then by ranks.
        is_first = "rank-00000-" in path.name
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):  # Cut by a kill.
                continue
            facts = json.loads(line)
            if is_first:
                found[facts["step"]] = []
            # A kill may have cut the first rank's line of a step that is done again.
            found.setdefault(facts["step"], []).extend(facts["examples"])
    return found


@pytest.fixture
def interrupted(start, model_dir, tmp_path):
    """Returns a function: a run of so many ranks, and the same one with a pause."""

    def run(num_ranks: int, num_ranks_later: int, *more: str):
        whole = tmp_path / "whole"
        job = start(
            *(*FLAGS, *more),
            f"--record_log={tmp_path / 'whole-log'}",
            f"--model_dir={whole}",
            num_ranks=num_ranks,
        )
        assert job.end(DONE_SECONDS) == 0, job.output
        flags = (*FLAGS, *more, f"--record_log={tmp_path / 'log'}")
        job = start(*flags, num_ranks=num_ranks)
        job.wait_for_step(13)
        job.signal_mpirun(signal.SIGUSR1)
        assert job.end(30) == REQUEUE_EXIT_CODE, job.output
        step = saved_steps(model_dir)[-1]
        assert 13 <= step < 30
        job = start(*flags, num_ranks=num_ranks_later)
        assert job.end(DONE_SECONDS) == 0, job.output
        assert f"Current step {step}." in job.output
        return whole

    return run


# The ranks have weights of their own when they are stopped.
LOCAL = ("--sync_every=29",)


@pytest.mark.parametrize(
    ("num_ranks", "flags"),
    [
        (2, ()),
        pytest.param(3, (), marks=pytest.mark.slow),
        pytest.param(2, LOCAL, marks=pytest.mark.slow),
    ],
)
def test_on_as_many_ranks_all_is_the_same_bit_for_bit(
    interrupted, model_dir, tmp_path, num_ranks, flags
):
    whole = interrupted(num_ranks, num_ranks, *flags)
    expected = tensors.load(whole, 30)
    found = tensors.load(model_dir, 30)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], value, err_msg=name)
    assert read_order(tmp_path / "log") == read_order(tmp_path / "whole-log")
    lines = [
        [(line["step"], line["loss"]) for line in read_metrics(folder)]
        for folder in (model_dir, whole)
    ]
    assert lines[0] == lines[1]
    assert [step for step, _ in lines[0]] == list(range(1, 31))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "later"), [(2, 1), (2, 3)])
def test_on_other_ranks_the_batches_are_the_same(
    interrupted, model_dir, tmp_path, before, later
):
    whole = interrupted(before, later)
    assert read_order(tmp_path / "log") == read_order(tmp_path / "whole-log")
    steps = [line["step"] for line in read_metrics(model_dir)]
    assert steps == list(range(1, 31))
    # Each rank normalizes by its own part of the batch, so that the weights differ;
    # but not by more than some steps of the whole training.
    ours = tensors.load(model_dir, 30).tensors
    expected = tensors.load(whole, 30).tensors
    for name in ours:
        if name.startswith("model/") and name.endswith("/kernel"):
            distance = np.linalg.norm(ours[name] - expected[name])
            assert distance < 0.2 * np.linalg.norm(expected[name]), name


def _flip_a_bit(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.slow  # make test has it in tests/parallel/test_main_on_ranks.py.
def test_the_checkpoint_before_a_damaged_one_is_taken(start, model_dir, outcome):
    job = start("--checkpoint_every=4steps")
    job.wait_until(lambda: len(saved_steps(model_dir)) >= 2)
    job.signal_mpirun(signal.SIGTERM)
    assert job.end(30) == REQUEUE_EXIT_CODE
    *_, before, newest = saved_steps(model_dir)
    _flip_a_bit(of_step(model_dir, newest) / "state.data-00000-of-00001")
    job = start("--checkpoint_every=4steps")
    job.wait_for_step(before + 1)
    assert f"Current step {before}." in job.output
    assert f"{of_step(model_dir, newest)} can't be read" in job.output
    job.signal_mpirun(signal.SIGTERM)
    code = job.end(30)
    outcome("newest checkpoint with a flipped bit", job, code)
    assert code == REQUEUE_EXIT_CODE
