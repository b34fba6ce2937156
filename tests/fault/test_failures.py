"""A rank that fails ends the whole job within seconds, with a sentence that says why.

Afterwards nothing is left behind, and the same command resumes from the last
checkpoint.
"""

import functools
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from resnet.base.atomic_files import is_leftover
from resnet.checkpoint import tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import history
from tests.fault.conftest import LARGE_CHECKPOINTS, STALL_SECONDS

pytestmark = pytest.mark.fault

# For a death, of which the launcher hears at once; and for standing still.
DEATH_SECONDS = 10.0
STALL_AND_MORE = STALL_SECONDS + 10.0


def assert_resumes(start, model_dir) -> None:
    """Starts the job again and sees it resume from its newest intact checkpoint."""
    newest = tensors.load_newest(model_dir)
    step = newest.step if newest else 0
    job = start()
    job.wait_for_step(step + 2)
    job.signal_mpirun(signal.SIGTERM)
    assert job.end(30) == REQUEUE_EXIT_CODE, job.output
    assert f"Current step {step}." in job.output
    assert saved_steps(model_dir)[-1] >= step + 2
    assert job.leftovers() == []


@pytest.fixture
def fails(outcome):
    """Returns `fails(job, fault, seconds)`: how a job ends, soon and not with 0."""

    def fails(job, fault: str, seconds: float) -> int:
        code = job.end(seconds)
        outcome(fault, job, code)
        assert code != 0
        return code

    return fails


def wait_for_fault(job, step: int) -> None:
    """Waits for the step before a fault; the clock to the job's end begins."""
    job.wait_for_step(step)
    job.faulted_at = time.monotonic()


def assert_nothing_is_left(job, model_dir, hydra_is_cut_off=False) -> None:
    assert job.leftovers(hydra_is_cut_off=hydra_is_cut_off) == []
    hidden = [path for path in model_dir.rglob(".*") if not is_leftover(path)]
    assert [path for path in hidden if not path.name.startswith(".step-")] == []


@pytest.mark.parametrize(
    "rank", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["rank 1", "rank 0"]
)
def test_a_rank_that_is_killed_in_a_step_is_named(start, model_dir, fails, rank):
    job = start()
    job.wait_for_step(7)
    job.kill(rank)
    fails(job, f"kill -9 of rank {rank} between steps", DEATH_SECONDS)
    sentence = rf"error: rank {rank} on \S+ has died while .* step \d+: it was killed"
    assert re.search(sentence, job.output), job.output
    assert job.output.count("error: rank") == 1
    assert_nothing_is_left(job, model_dir)
    assert history.read_failure(model_dir)["step"] >= 7
    (model_dir / ".metrics.jsonl.01234567.partial").touch()  # As of a killed rank 0.
    assert_resumes(start, model_dir)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["before the first step", "in an all-reduce"])
def test_a_rank_that_is_killed_elsewhere_is_named(start, model_dir, fails, rank, when):
    job = start("--stall_seconds=60")
    if when == "before the first step":
        job.wait_until(lambda: (model_dir / "lock").exists())
    else:
        job.wait_for_step(7)
        job.kill(1 - rank, signal.SIGSTOP)  # The rank waits for this one's gradients.
        time.sleep(1)
    job.kill(rank)
    fails(job, f"kill -9 of rank {rank} {when}", DEATH_SECONDS)
    assert f"error: rank {rank} on" in job.output
    assert_nothing_is_left(job, model_dir)
    assert_resumes(start, model_dir)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_a_checkpoint_is_saved(
    start, model_dir, fails, rank
):
    job = start(LARGE_CHECKPOINTS)
    job.wait_for_step(3)
    folder = model_dir / "checkpoints"
    job.wait_until(lambda: list(folder.glob(".step-*.unfinished/state*")), 0.0005)
    job.kill(rank)
    fails(job, f"kill -9 of rank {rank} while rank 0 saves", DEATH_SECONDS)
    assert job.leftovers() == []
    assert_resumes(functools.partial(start, LARGE_CHECKPOINTS), model_dir)
    assert not list(folder.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_a_checkpoint_is_loaded(
    start, model_dir, fails, rank
):
    start = functools.partial(start, LARGE_CHECKPOINTS)
    first = start()
    first.wait_for_step(2)
    first.signal_mpirun(signal.SIGTERM)
    assert first.end(30) == REQUEUE_EXIT_CODE
    saved = saved_steps(model_dir)
    job = start()
    pid = job.pid(0)

    def is_loading() -> bool:
        try:
            links = [entry.readlink() for entry in _open_files(pid)]
        except OSError:
            return False
        return any("/checkpoints/step-" in str(link) for link in links)

    job.wait_until(is_loading, 0.0002)
    job.kill(rank)
    fails(job, f"kill -9 of rank {rank} while a checkpoint is loaded", DEATH_SECONDS)
    assert_nothing_is_left(job, model_dir)
    assert saved_steps(model_dir) == saved
    assert_resumes(start, model_dir)


def _open_files(pid: int) -> list:
    return list(Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize(
    "rank", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["rank 1", "rank 0"]
)
def test_a_stopped_rank_ends_the_job_after_the_set_time(start, model_dir, fails, rank):
    job = start()
    job.wait_for_step(7)
    job.kill(rank, signal.SIGSTOP)
    fails(
        job, f"SIGSTOP of rank {rank} (stall_seconds {STALL_SECONDS})", STALL_AND_MORE
    )
    assert job.ended_after >= STALL_SECONDS - 1  # From the beginning of the step.
    assert re.search(
        rf"error: rank {rank} on \S+ was stopped by a signal \d+ s ago", job.output
    )
    assert_nothing_is_left(job, model_dir)


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_a_moment_continues(start, outcome):
    job = start("--train_steps=60")
    job.wait_for_step(7)
    job.kill(1, signal.SIGSTOP)
    time.sleep(STALL_SECONDS / 2)
    job.kill(1, signal.SIGCONT)
    code = job.end(120)
    outcome("SIGSTOP of rank 1, SIGCONT in time", job, code)
    assert code == 0, job.output


@pytest.mark.slow  # make test has one in tests/jobs/test_errors_on_ranks.py.
@pytest.mark.parametrize("rank", [1, 0], ids=["rank 1", "rank 0"])
def test_an_exception_of_one_rank_is_the_last_thing_that_is_said(
    start, model_dir, fails, rank
):
    job = start(fault=("bug", str(rank), "7"))
    wait_for_fault(job, 6)
    assert fails(job, f"exception on rank {rank}", DEATH_SECONDS) == 1
    assert job.output.count("Traceback") == 1
    ours = job.output[job.output.index("Traceback") :]
    assert "IndexError: a bug of this rank" in ours
    assert f"rank {rank} on" in ours
    assert not re.search(r"^step \d+/", ours, re.M)
    assert_nothing_is_left(job, model_dir, hydra_is_cut_off=True)
    assert_resumes(start, model_dir)


@pytest.mark.slow
def test_a_rank_out_of_memory_is_named(start, model_dir, fails):
    job = start(fault=("memory", "1", "7"))
    wait_for_fault(job, 6)
    assert fails(job, "MemoryError on rank 1", DEATH_SECONDS) == 1
    assert "MemoryError" in job.output
    assert "rank 1 on" in job.output
    assert_nothing_is_left(job, model_dir, hydra_is_cut_off=True)


@pytest.mark.root
@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_named(
    start, model_dir, fails, little_memory
):
    # At its limit a process is slow for a while before the kernel kills it.
    job = start("--stall_seconds=60", fault=("eat", "1", "7"))
    little_memory(job.pid(1))
    wait_for_fault(job, 6)
    fails(job, "rank 1 killed by the kernel, out of memory", DEATH_SECONDS + 60)
    assert re.search(
        r"error: rank 1 on \S+ has died while .*: the kernel of this host ran out of"
        " memory and killed it",
        job.output,
    ), job.output
    assert_nothing_is_left(job, model_dir)
    assert_resumes(start, model_dir)


@pytest.fixture
def little_memory():
    """Returns a function that lets a process have 1.25 GiB. Needs root."""
    version_1 = Path("/sys/fs/cgroup/memory")
    is_version_1 = version_1.is_dir()
    group = (version_1 if is_version_1 else version_1.parent) / f"fault-{os.getpid()}"
    limit = "memory.limit_in_bytes" if is_version_1 else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(5 << 28))
    except OSError as error:
        pytest.skip(f"no memory can be limited here: {error}")
    yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    while (group / "cgroup.procs").read_text():
        time.sleep(0.1)
    group.rmdir()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_what_it_does(start, model_dir, fails):
    job = start(fault=("hang", "1", "7"))
    wait_for_fault(job, 6)
    fails(job, f"rank 1 hangs (stall_seconds {STALL_SECONDS})", STALL_AND_MORE)
    assert re.search(
        r"error: rank 1 on \S+ has been reading the batch of step 7 for", job.output
    )
    assert_nothing_is_left(job, model_dir)


@pytest.mark.slow
def test_a_rank_that_ends_without_a_word_is_named(start, model_dir, outcome):
    job = start(fault=("exit", "1", "7"))
    wait_for_fault(job, 6)
    code = job.end(DEATH_SECONDS)
    outcome("rank 1 exits with 0", job, code)
    assert "error: rank 1 on" in job.output
    assert_nothing_is_left(job, model_dir)


@pytest.mark.slow  # make test has it in tests/parallel/test_errors_on_ranks.py.
def test_a_loss_that_is_no_number_stops_all_at_that_step(start, model_dir, fails):
    job = start(fault=("nan", "1", "7"))
    wait_for_fault(job, 6)
    assert fails(job, "NaN on rank 1", DEATH_SECONDS) == 1
    assert re.search(r"error: the loss of step 7 is not finite on rank 1", job.output)
    assert job.output.count("error:") == 1
    found = json.loads((model_dir / "diverged-step-00000007.json").read_text())
    (rank,) = found["ranks"]
    assert (rank["rank"], len(rank["examples"])) == (1, 6)
    assert saved_steps(model_dir) == [5]
    assert_nothing_is_left(job, model_dir)
    assert_resumes(start, model_dir)


@pytest.mark.slow
def test_weights_that_drift_name_their_rank(start, model_dir, fails):
    job = start("--checkpoint_every=4steps", fault=("drift", "1", "7"), num_ranks=3)
    wait_for_fault(job, 7)
    assert fails(job, "weights of rank 1 drift", DEATH_SECONDS) == 1
    assert "step 8 must be the same on all ranks; those of rank 1 on" in job.output
    assert saved_steps(model_dir) == [4]
    assert_nothing_is_left(job, model_dir)
