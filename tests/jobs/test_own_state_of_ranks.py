"""State that each rank has for itself is saved by each rank, and restored."""

import json
import shutil

import pytest

from resnet.checkpoint.step_dirs import of_step, saved_steps

pytestmark = pytest.mark.multiprocess

PROGRAM = "tests/jobs/own_state_of_ranks.py"


@pytest.fixture(scope="module")
def run(run_ranks, tmp_path_factory):
    """Returns `run(num_ranks, scenario, model_dir)`: what each rank has found."""

    def run_scenario(num_ranks: int, scenario: str, model_dir) -> list[dict]:
        output = tmp_path_factory.mktemp("found") / "found"
        job = run_ranks(num_ranks, PROGRAM, str(model_dir), str(output), scenario)
        assert job.returncode == 0, job.stderr
        return [
            json.loads(output.with_name(f"found-{rank}.json").read_text())
            for rank in range(num_ranks)
        ]

    return run_scenario


@pytest.fixture(scope="module", params=[2, 3])
def saved(request, run, tmp_path_factory):
    """The number of ranks, their folder, and what they found while they saved."""
    model_dir = tmp_path_factory.mktemp("model")
    return request.param, model_dir, run(request.param, "save", model_dir)


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of that folder, which a test may change."""
    shutil.copytree(saved[1], tmp_path / "model")
    return tmp_path / "model"


def test_each_rank_writes_its_own_file_and_rank_0_the_rest(saved):
    num_ranks, model_dir, _ = saved
    names = {file.name for file in of_step(model_dir, 30).iterdir()}
    prefixes = [f"rank-{rank:05d}-of-{num_ranks:05d}" for rank in range(num_ranks)]
    assert names == {"checkpoint.json"} | {
        f"{prefix}.{suffix}"
        for prefix in ("state", *prefixes)
        for suffix in ("index", "data-00000-of-00001")
    }
    contents = json.loads((of_step(model_dir, 30) / "checkpoint.json").read_text())
    assert contents["format"] == 2
    assert set(contents["files"]) == names - {"checkpoint.json"}


def test_ranks_agree_on_the_steps_that_are_saved(saved):
    _, _, found = saved
    for one in found:
        assert one["first"] == [5]
        assert one["in succession"][-1] == 12
        assert set(one["in succession"]) <= set(range(5, 13))


def test_a_rank_whose_disk_is_full_costs_one_checkpoint_of_all(saved):
    num_ranks, _, found = saved
    before = found[0]["in succession"]
    for rank, one in enumerate(found):
        assert one["disk full"] == before
        assert one["then"] == [*before, 30]
        assert one["error"]
        other = f"rank {num_ranks - 1} on "
        assert one["error"].startswith(other) is (rank != num_ranks - 1)


def test_on_as_many_ranks_each_has_its_own_state_again_bit_for_bit(saved, run):
    num_ranks, model_dir, _ = saved
    for rank, found in enumerate(run(num_ranks, "resume", model_dir)):
        assert found["step"] == 30
        assert found["own state is the same"]
        assert found["weights are the same"]
        assert found["averages"] == [rank + i for i in range(len(found["averages"]))]
        assert found["saved by"] is None


def test_on_other_ranks_a_function_gets_the_files_one_by_one(saved, run):
    num_ranks, model_dir, _ = saved
    num_later = {2: 3, 3: 1}[num_ranks]
    for found in run(num_later, "resume", model_dir):
        assert found["saved by"] == num_ranks
        assert found["own state is the same"]  # As their mean.
        assert found["weights are the same"]


def test_a_damaged_file_of_a_rank_is_a_damaged_checkpoint(saved, run, copy):
    num_ranks, _, found = saved
    name = f"rank-{num_ranks - 1:05d}-of-{num_ranks:05d}.data-00000-of-00001"
    file = of_step(copy, 30) / name
    if num_ranks == 2:
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    for one in run(num_ranks, "resume", copy):
        assert one["step"] == 12
        assert one["own state is the same"]
    assert saved_steps(copy) == found[0]["in succession"]
    assert (copy / "checkpoints" / "damaged-step-00000030").is_dir()


def test_a_rank_that_is_killed_while_it_saves_leaves_the_older_ones(
    run_ranks, run, tmp_path
):
    model_dir = tmp_path / "model"
    job = run_ranks(2, PROGRAM, str(model_dir), str(tmp_path / "found"), "killed")
    assert job.returncode != 0
    assert saved_steps(model_dir) == [5]
    assert (model_dir / "checkpoints" / ".step-00000006.unfinished").is_dir()
    for found in run(2, "resume", model_dir):
        assert found["step"] == 5
        assert found["own state is the same"]
    assert [entry.name for entry in (model_dir / "checkpoints").iterdir()] == [
        "step-00000005"
    ]


def test_a_folder_that_only_some_ranks_see_is_refused_in_one_sentence(
    run_ranks, tmp_path
):
    job = run_ranks(2, PROGRAM, str(tmp_path), str(tmp_path / "found"), "elsewhere")
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "must be a folder that all ranks share" in job.stderr
    assert "rank 1 on " in job.stderr
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
