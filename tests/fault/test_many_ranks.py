"""A start of 32 ranks on this machine, with what it exchanges, prints and leaves."""

import re
from pathlib import Path

import pytest

from tests import main_run, tiny_set
from tests.fault import many_ranks
from tests.jobs.conftest import run_ranks  # noqa: F401 - The fixture.

NUM_RANKS = 32
_NEEDED_BYTES = 400e6 * NUM_RANKS


def _available_bytes() -> int:
    """Returns the memory that programs can still take."""
    found = re.search(
        r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M
    )
    return int(found[1]) << 10 if found else 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        _available_bytes() < _NEEDED_BYTES,
        reason=f"needs {_NEEDED_BYTES / 1e9:.0f} GB of free memory",
    ),
]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Returns a set of 72 training and 11 validation images."""
    folder = tmp_path_factory.mktemp("records")
    tiny_set.make(folder, many_ranks.IMAGES_PER_CLASS)
    return folder / "records"


@pytest.fixture(scope="module")
def started(records, tmp_path_factory):
    """Returns what a training of 32 ranks took, and the folder of its run."""
    folder = tmp_path_factory.mktemp("many")
    start = many_ranks.start(NUM_RANKS, records, folder)
    print(start.facts())
    return start, folder / "model"


def test_it_ends_well_and_leaves_nothing(started):
    start, _ = started
    assert start.exit_code == 0, start.output
    assert start.leftovers == []


def test_ranks_without_an_image_evaluate_with_the_others(started):
    start, model_dir = started
    (line,) = main_run.evaluation_lines(model_dir)
    assert (line["step"], line["count"]) == (many_ranks.STEPS, 11)
    assert len(re.findall(r"^step 6: top-1 .* on 11 images$", start.output, re.M)) == 1


def test_what_it_prints_is_that_of_one_rank(started):
    start, _ = started
    assert start.output.count(f"{NUM_RANKS} rank(s), {NUM_RANKS} on this node") == 1
    assert start.num_lines < 25, start.output


def test_it_writes_the_files_of_one_rank(started):
    start, _ = started
    assert start.num_files < 15


def test_a_rank_receives_a_few_numbers_of_each_other(started):
    start, _ = started
    # The speeds of all at three lines and the digests of their weights at two saves;
    # BatchNorm's averages and the hosts' names go to rank 0.
    assert max(start.agreed_bytes[1:]) < 5000 + 500 * NUM_RANKS
    assert start.agreed_bytes[0] < 5000 + 10_000 * NUM_RANKS
    assert len(set(start.num_calls)) == 1


def test_rank_0_has_one_connection_to_each_other(started):
    start, _ = started
    assert start.num_connections == NUM_RANKS - 1
    # The rank, its wrapper and its watchdog; mpirun and its proxy.
    assert start.num_processes == 3 * NUM_RANKS + 2


def test_a_rank_takes_the_memory_of_a_program_with_tensorflow(started):
    start, _ = started
    assert start.rank_bytes < 600e6
    assert start.watchdog_bytes < 15e6
    assert start.shared_memory_bytes < 5e6 * NUM_RANKS


def test_a_mistake_of_32_ranks_is_one_sentence(run_ranks, records, tmp_path):  # noqa: F811
    flags = (*many_ranks.FLAGS, f"--data_dir={records}", f"--model_dir={tmp_path}")
    job = run_ranks(
        NUM_RANKS,
        "resnet/resnet_main.py",
        *flags,
        f"--train_batch_size={NUM_RANKS + 1}",
    )
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert f"Use {NUM_RANKS} or {2 * NUM_RANKS}." in job.stderr
