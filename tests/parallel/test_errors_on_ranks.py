"""What a user gets wrong is one sentence, which all ranks know of."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet import resnet_main
from resnet.checkpoint import manager
from resnet.checkpoint.manager import CheckpointManager
from resnet.checkpoint.step_dirs import saved_steps
from resnet.data import batches
from tests import rank_state, smallest


@pytest.fixture
def train(run, records, tmp_path):
    """Returns `train(*flags, of_rank_1=(), code=2)`, which trains into a folder.

    It is `tmp_path/model`; of errors, there is one.
    """
    flags = ("--recipe=digits", smallest.FLAG, f"--data_dir={records}")
    flags += (f"--model_dir={tmp_path / 'model'}", "--train_batch_size=6")

    def train(*more: str, code: int = 2, **kind: Any):
        job = run(resnet_main, *flags, *more, code=code, **kind)
        assert job.stderr.count("error:") == (code != 0)
        assert "Traceback" not in job.stderr
        return job

    return train


@pytest.mark.ranks(3)
def test_a_batch_that_ranks_cannot_share_is_refused_in_one_sentence(train, tmp_path):
    job = train("--train_batch_size=8")
    assert "Use 6 or 9." in job.stderr
    assert not (tmp_path / "model").exists()


def test_ranks_with_different_records_or_flags_are_refused(
    lockstep, train, records, tmp_path
):
    other = lockstep.from_rank_0(lambda: with_another_shard(records, tmp_path))
    for flag in (f"--data_dir={other}", "--weight_decay=0.25"):
        job = train(of_rank_1=(flag,))
        words = "all ranks must have the same data set and settings; rank 1"
        assert words in job.stderr


def with_another_shard(records: Path, tmp_path: Path) -> Path:
    """Returns a copy of the set whose manifest tells other bytes of a shard."""
    other = tmp_path / "other"
    shutil.copytree(records, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    return other


def test_a_batch_that_is_not_finite_on_one_rank_stops_all_at_that_step(
    lockstep, train, tmp_path, monkeypatch
):
    flags = ("--mode=train", "--train_steps=4", "--warmup_steps=2")
    flags += ("--checkpoint_every=2steps", "--train_batch_size=12")
    with monkeypatch.context() as patch:
        patch.setattr(batches.Batches, "__next__", nan_at(4, lockstep.rank == 1))
        job = train(*flags, code=1)
    assert "error: the loss of step 4 is not finite on rank 1" in job.stderr
    model_dir = tmp_path / "model"
    found = json.loads((model_dir / "diverged-step-00000004.json").read_text())
    (rank,) = found["ranks"]
    assert (rank["rank"], len(rank["examples"])) == (1, 6)
    assert saved_steps(model_dir) == [2]
    job = train(*flags, code=0)
    assert "Current step 2." in job.stderr


def nan_at(step: int, is_here: bool) -> Callable:
    """Returns how batches are read; where `is_here`, that of a step is all NaN."""
    read = batches.Batches.__next__
    num_read = 0

    def read_or_nan(self):
        nonlocal num_read
        num_read += 1
        batch = read(self)
        if not is_here or num_read != step:
            return batch
        return batch._replace(images=tf.fill(tf.shape(batch.images), np.nan))

    return read_or_nan


def test_a_file_of_numbers_that_cannot_be_written_is_one_sentence(
    lockstep, train, tmp_path
):
    path = tmp_path / "model" / "metrics.jsonl"
    lockstep.from_rank_0(lambda: path.mkdir(parents=True))
    job = train()
    assert "metrics.jsonl can't be read and written: Is a directory" in job.stderr


def test_a_run_that_fails_is_saved_if_all_ranks_fail_after_the_same_step(
    communicator, tmp_path, monkeypatch
):
    monkeypatch.setattr(manager, "_SECONDS_OF_OTHERS", 60.0)
    state, rank = rank_state.make(tmp_path), communicator.rank
    checkpoints = CheckpointManager(state.config, state, communicator)

    def fail(step: int) -> list[int]:
        rank_state.set_to(state, step, rank)
        with (
            pytest.raises(OSError, match="lost"),
            checkpoints.saved_if_failed(lambda: checkpoints.save({})),
        ):
            raise OSError("lost")
        return saved_steps(tmp_path)

    assert fail(5) == [5]
    communicator.allgather(None)
    state.is_whole = rank == 0  # The other one is within a step.
    assert fail(6) == [5]
    state.is_whole = True
    monkeypatch.setattr(manager, "_SECONDS_OF_OTHERS", 0.5)
    assert rank == 0 or fail(7) == [5]  # Alone.
    communicator.allgather(None)
    assert rank == 1 or checkpoints._failing.allgather_within(60, 8) == [8, 7]
    communicator.allgather(None)  # Until then, MPI may write to rank 1's arrays.
