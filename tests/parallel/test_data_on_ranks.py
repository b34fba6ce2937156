"""Which records real ranks read, and what they do about a set that is not in order.

The set of the fixture `records` has 24 training examples in 3 files and 11 validation
examples.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval import resnet_eval
from resnet import resnet_main
from tests import damaged_record, smallest, tiny_set
from tests.drawn import shuffled
from tests.main_run import read_metrics
from tests.processes import completed

BATCH = 6
NUM_EXAMPLES = 24
DAMAGED = 13
FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    f"--train_batch_size={BATCH}",
    "--warmup_steps=0",
    "--log_step_count_steps=2",
    "--checkpoint_every=5steps",
    "--num_intra_threads=1",
    "--mode=train",
)


@pytest.fixture
def train(run, tmp_path):
    """Returns `train(data_dir, *flags)`, which trains and logs what is read."""

    def train(data_dir: Path, *flags: str, **kind: Any):
        return run(
            resnet_main,
            *FLAGS,
            f"--data_dir={data_dir}",
            f"--model_dir={tmp_path / 'model'}",
            f"--record_log={tmp_path / 'log'}",
            *flags,
            **kind,
        )

    return train


def read_log(folder: Path, start_step: int, num_ranks: int) -> list[list[list[int]]]:
    """Returns what each rank read at each step since a start: `[step][rank]`."""
    of_ranks = []
    for rank in range(num_ranks):
        name = f"from-step-{start_step:08d}-rank-{rank:05d}-of-{num_ranks:05d}.jsonl"
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert [line["step"] for line in lines] == list(
            range(start_step, start_step + len(lines))
        )
        of_ranks.append([line["examples"] for line in lines])
    return [list(step) for step in zip(*of_ranks, strict=True)]


def expected_order(first_step: int, end_step: int) -> list[int]:
    position = np.arange(first_step * BATCH, end_step * BATCH)
    return shuffled(
        position % NUM_EXAMPLES, 0, position // NUM_EXAMPLES, NUM_EXAMPLES
    ).tolist()


def joined(steps: list[list[list[int]]]) -> list[int]:
    return [example for step in steps for rank in step for example in rank]


@pytest.fixture
def copied(lockstep, records, tmp_path) -> Path:
    """Returns a copy of the set, to be damaged."""
    return lockstep.from_rank_0(lambda: shutil.copytree(records, tmp_path / "copied"))


def test_ranks_read_what_arithmetic_says_also_when_their_number_changes(
    lockstep, train, records, tmp_path
):
    train(records, "--train_steps=9", is_alone=True)
    # As if it had been stopped after step 5.
    last = tmp_path / "model" / "checkpoints" / "step-00000009"
    lockstep.from_rank_0(lambda: shutil.rmtree(last))
    train(records, "--train_steps=9")
    first = read_log(tmp_path / "log", 0, 1)[:5]
    second = read_log(tmp_path / "log", 5, 2)
    assert [len(rank) for rank in first[0]] == [6]
    assert [len(rank) for rank in second[0]] == [3, 3]
    found = joined(first) + joined(second)
    assert found == expected_order(0, 9)
    epochs = np.array(found[: 2 * NUM_EXAMPLES]).reshape(2, NUM_EXAMPLES)
    assert (np.sort(epochs) == np.arange(NUM_EXAMPLES)).all()


def test_a_damaged_record_is_skipped_and_counted_and_ranks_stay_in_step(
    lockstep, train, copied, tmp_path
):
    path, offset = lockstep.from_rank_0(
        lambda: damaged_record.flip_a_bit(copied, DAMAGED)
    )
    job = train(copied, "--train_steps=8", "--on_bad_record=skip")
    assert f"the record at byte {offset} of {path} is corrupt" in job.stderr
    found = joined(read_log(tmp_path / "log", 0, 2))
    assert found == [
        DAMAGED + 1 if one == DAMAGED else one for one in expected_order(0, 8)
    ]
    lines = read_metrics(tmp_path / "model")
    skipped = [line["skipped_records"] for line in lines]
    assert len(skipped) == 4
    assert sum(skipped) == 2  # Once in each of two epochs.


def test_evaluation_leaves_damaged_records_out_or_names_them(
    lockstep, train, run, records, copied, tmp_path
):
    train(records, "--train_steps=1", is_alone=True)

    def damage() -> Path:
        shard = next((copied / "validation").iterdir())
        content = bytearray(shard.read_bytes())
        content[200] ^= 1
        shard.write_bytes(content)
        return shard

    shard = lockstep.from_rank_0(damage)
    arguments = (f"--data_dir={copied}", f"--model_dir={tmp_path / 'model'}")
    job = run(resnet_eval, *arguments, is_alone=True, code=2)
    assert f"the record at byte 0 of {shard} is corrupt" in job.stderr
    job = run(resnet_eval, *arguments, "--on_bad_record=skip")
    assert "on 10 images, 1 skipped" in job.stdout


def make_nodes(raw: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Returns the folders of two nodes, each with its own shards of a set."""
    whole = tmp_path / "whole"
    tiny_set.convert(raw, whole, "--train_shards=4", "--validation_shards=3")
    nodes = tmp_path / "node0", tmp_path / "node1"
    program = (sys.executable, tiny_set.REPOSITORY / "launch/place_shards.py")
    for number, node in enumerate(nodes):
        listed = completed(
            [*program, f"--data_dir={whole}", "--num_nodes=2", f"--node={number}"],
            check=True,
        )
        for name in listed.stdout.splitlines():
            (node / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(whole / name, node / name)
    return nodes


def test_each_node_can_read_its_own_shards_only(lockstep, train, records, tmp_path):
    raw = records.parent / "raw"
    first, second = lockstep.from_rank_0(lambda: make_nodes(raw, tmp_path))
    flags = ("--mode=train_and_eval", "--shard_by=file", "--train_steps=8")
    job = train(first, *flags, of_rank_1=(f"--data_dir={second}",))
    steps = read_log(tmp_path / "log", 0, 2)
    for rank, examples in enumerate((range(12), range(12, 24))):
        read = [example for step in steps for example in step[rank]]
        epochs = np.array(read).reshape(2, 12)
        assert (np.sort(epochs) == examples).all()
        assert epochs[0].tolist() != epochs[1].tolist()
    assert "on 11 images" in job.stderr


def test_a_shard_missing_on_one_rank_ends_all_before_tensorflow_starts(
    lockstep, train, records, copied
):
    lockstep.from_rank_0((copied / "train" / "train-00002-of-00003").unlink)
    of_rank_1 = (f"--data_dir={copied}",)
    job = train(records, "--train_steps=4", of_rank_1=of_rank_1, code=2)
    assert job.stderr.count("error") == 1
    assert "train-00002-of-00003 can't be read (No such file" in job.stderr
    assert " each, " not in job.stderr  # Said before TensorFlow is imported.
