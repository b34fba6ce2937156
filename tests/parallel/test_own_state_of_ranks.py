"""State that each rank has for itself is saved by each rank, and restored."""

import contextlib
import functools
import json
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resnet.base.text import counted
from resnet.checkpoint import restore, tensors
from resnet.checkpoint.manager import CheckpointManager
from resnet.checkpoint.restore import check_is_shared, restore_newest
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.distributed.communicator import AgreedError, Communicator
from tests import rank_state

pytestmark = pytest.mark.ranks(3)


@pytest.fixture(scope="module")
def saved(communicator, new_folder) -> tuple[Path, dict[str, Any]]:
    """Returns a folder with checkpoints, and what this rank found as it saved them."""
    model_dir = new_folder("model")
    return model_dir, save_some(communicator, model_dir)


def save_some(communicator: Communicator, model_dir: Path) -> dict[str, Any]:
    """Saves one by one, then in quick succession, then with a rank's disk full."""
    rank, found = communicator.rank, {}
    state = rank_state.make(model_dir)
    restore_newest(state, model_dir, communicator)
    manager = CheckpointManager(state.config, state, communicator)

    def save(step: int) -> None:
        rank_state.set_to(state, step, rank)
        manager.save({})

    save(5)
    manager.finish()
    found["first"] = saved_steps(model_dir)
    for step in range(6, 13):  # Ranks that are not equally fast.
        save(step)
        time.sleep(0.002 * ((rank + step) % 3))
    manager.finish()
    found["in succession"] = saved_steps(model_dir)
    with full_disk(is_here=rank == communicator.num_ranks - 1):
        save(20)
        manager.close()
        found["disk full"] = saved_steps(model_dir)
        found["error"] = manager._writer._error
        communicator.allgather(None)
    save(30)
    manager.finish()
    found["then"] = saved_steps(model_dir)
    return found


@contextlib.contextmanager
def full_disk(is_here: bool) -> Iterator[None]:
    """Has writing of files fail on this rank, beyond their first bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_rank_writes_its_own_file_which_the_two_newest_checkpoints_keep(saved):
    model_dir, found = saved
    of_ranks = [f"rank-{rank:05d}-of-00003" for rank in range(3)]
    for step in (*found["in succession"], 30):
        folder = of_step(model_dir, step)
        names = {file.name for file in folder.iterdir()}
        assert names == {"checkpoint.json"} | {
            f"{prefix}.{suffix}"
            for prefix in ("state", *(of_ranks if step >= 12 else ()))
            for suffix in ("index", "data-00000-of-00001")
        }
        contents = json.loads((folder / "checkpoint.json").read_text())
        assert set(contents["files"]) == names - {"checkpoint.json"}
        assert tensors.load(model_dir, step).step == step


def test_ranks_agree_on_the_steps_that_are_saved_also_if_a_disk_is_full(
    lockstep, saved
):
    found = saved[1]
    assert found["first"] == [5]
    assert found["in succession"][-1] == 12
    assert set(found["in succession"]) <= set(range(5, 13))
    of_ranks = lockstep.gather(found["in succession"])
    assert of_ranks == [found["in succession"]] * 3
    # The full disk of the last rank costs one checkpoint of all.
    assert found["disk full"] == found["in succession"]
    assert found["then"] == [*found["in succession"], 30]
    assert found["error"]
    is_of_other = found["error"].startswith("rank 2 on ")
    assert is_of_other is (lockstep.rank != 2)


def test_on_as_many_ranks_each_has_its_own_state_again_bit_for_bit(communicator, saved):
    state = rank_state.make(saved[0])
    restore_newest(state, saved[0], communicator)
    rank_state.assert_is_of(state, 30, communicator.rank)


@pytest.mark.parametrize(("num_before", "num_now"), [(3, 1), (1, 2), (2, 3)])
def test_on_other_ranks_averages_are_the_mean_and_residuals_zero(
    lockstep, tmp_path, num_before, num_now, caplog
):
    if (before := lockstep.first_ranks(num_before)) is not None:
        save_one(before, tmp_path)
    lockstep.gather(None)  # Also on the ranks that had nothing to save, it is there.
    if (now := lockstep.first_ranks(num_now)) is not None:
        state = rank_state.make(tmp_path)
        restore_newest(state, tmp_path, now)
        rank_state.assert_common_is_of(state, 30)
        rank_state.assert_averages_are(state, (num_before - 1) / 2)
        assert not state.rank_variables[rank_state.NAME].numpy().any()
        told = f"for a job of {counted(num_now, 'rank')}: the state of compression"
        assert caplog.text.count(told) == 1


def save_one(communicator: Communicator, model_dir: Path) -> None:
    state = rank_state.make(model_dir)
    restore_newest(state, model_dir, communicator)
    manager = CheckpointManager(state.config, state, communicator)
    rank_state.set_to(state, 30, communicator.rank)
    manager.save({})
    manager.finish()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_damaged_file_of_a_rank_is_a_damaged_checkpoint(
    lockstep, communicator, saved, tmp_path, is_removed
):
    model_dir, found = saved
    copy = tmp_path / "model"
    lockstep.from_rank_0(lambda: damage(shutil.copytree(model_dir, copy), is_removed))
    state = rank_state.make(copy)
    restore_newest(state, copy, communicator)
    steps = lockstep.from_rank_0(lambda: saved_steps(copy))
    assert steps == found["in succession"]
    rank_state.assert_is_of(state, 12, communicator.rank)
    assert (copy / "checkpoints" / "damaged-step-00000030").is_dir()


def test_if_all_checkpoints_are_damaged_the_ranks_agree_on_one_sentence(
    lockstep, communicator, saved, tmp_path
):
    copy = tmp_path / "model"

    def damage_all() -> None:
        shutil.copytree(saved[0], copy)
        for file in copy.rglob("state.data-*"):
            file.write_bytes(file.read_bytes()[:100])

    lockstep.from_rank_0(damage_all)
    with pytest.raises(AgreedError, match=r"all \d checkpoints in .* are corrupt"):
        restore_newest(rank_state.make(copy), copy, communicator)


def damage(model_dir: Path, is_removed: bool) -> None:
    """Removes the last rank's file of step 30, or flips a bit of it."""
    file = of_step(model_dir, 30) / "rank-00002-of-00003.data-00000-of-00001"
    if is_removed:
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def test_a_folder_that_only_some_ranks_see_is_refused_in_one_sentence(
    communicator, tmp_path, monkeypatch
):
    check = functools.partial(check_is_shared, seconds=0.5)
    monkeypatch.setattr(restore, "check_is_shared", check)
    model_dir = tmp_path / f"rank{communicator.rank}"  # Hosts without a shared disk.
    state = rank_state.make(model_dir)
    with pytest.raises(AgreedError) as refused:
        restore_newest(state, model_dir, communicator)
    sentence = str(refused.value).replace(str(model_dir), "MODEL_DIR")
    assert communicator.allgather(sentence) == [sentence] * communicator.num_ranks
    assert "must be a folder that all ranks share" in sentence
    assert "rank 1 on " in sentence
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
