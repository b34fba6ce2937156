import dataclasses
import time
import types
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf
from absl import logging

from data_prep.records import manifest
from resnet.config.config import Config, save_config
from resnet.data import record_files
from resnet.data.example_shard import ExampleShard
from resnet.data.input_pipeline import Batch
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import input_wait, jsonl
from resnet.metrics.input_wait import InputWait
from resnet.runtime.job import Run
from resnet.training import loop
from tests.unit.jobs import job

ALONE = Communicator(ProcessInfo())


class Clock:
    """A clock that advances only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """The warnings, as they are written."""
    found: list[str] = []
    monkeypatch.setattr(
        logging, "warning", lambda form, *values: found.append(form % values)
    )
    return found


@pytest.fixture
def step(monkeypatch) -> Callable[[InputWait, float, float], None]:
    """A function that takes a step of so many seconds for its batch and after it."""
    clock = Clock()
    monkeypatch.setattr(
        input_wait, "time", types.SimpleNamespace(monotonic=clock.monotonic)
    )

    def step(
        wait: InputWait, for_batch: float, after_it: float, micro_batches: int = 1
    ) -> None:
        clock.now += 100  # What lies between two steps is not looked at.
        for _ in range(micro_batches):
            with wait.waiting():
                clock.now += for_batch
            clock.now += after_it
        wait.step_done()

    return step


def test_the_share_is_that_of_the_time_of_the_steps(step, warnings):
    wait = InputWait()
    step(wait, 50, 30)  # Neither the pipeline's start nor the making of the graph.
    step(wait, 1, 9)
    step(wait, 0, 10)
    assert wait.report(ALONE) == pytest.approx(1 / 20)
    step(wait, 3, 1)
    assert wait.report(ALONE) == pytest.approx(3 / 4)


def test_the_waits_for_all_micro_batches_of_a_step_count(step, warnings):
    wait = InputWait()
    step(wait, 5, 1, micro_batches=4)
    step(wait, 1, 2, micro_batches=4)
    assert wait.report(ALONE) == pytest.approx(4 / 12)


def test_nothing_is_claimed_without_a_step(step, warnings):
    wait = InputWait()
    assert wait.report(ALONE) == 0
    step(wait, 50, 0)
    assert wait.report(ALONE) == 0
    assert not warnings


def test_the_first_step_behind_a_pause_does_not_count(step, warnings):
    wait = InputWait()
    step(wait, 1, 1)
    step(wait, 1, 1)
    wait.paused()
    step(wait, 0, 7)
    step(wait, 1, 5)
    assert wait.report(ALONE) == pytest.approx(2 / 8)


def test_up_to_five_in_a_hundred_is_no_warning(step, warnings):
    wait = InputWait()
    step(wait, 0, 1)
    for for_batch in (0.0, 1.0, 5.0):
        step(wait, for_batch, 100 - for_batch)
        assert wait.report(ALONE) == pytest.approx(for_batch / 100)
    assert not warnings


def test_a_further_warning_is_of_twice_as_much(step, warnings):
    wait = InputWait()
    step(wait, 0, 1)
    counts = []
    for percent in (6, 11.5, 1, 7, 12, 12, 23, 25, 90):
        step(wait, percent, 100 - percent)
        wait.report(ALONE)
        counts.append(len(warnings))
    assert counts == [1, 1, 1, 1, 2, 2, 2, 3, 4]
    assert [one.partition(" %")[0].rpartition(" ")[2] for one in warnings] == [
        "6",
        "12",
        "25",
        "90",
    ]


def test_the_rank_that_waits_most_is_named(step, warnings):
    class FourRanks(Communicator):
        def allgather(self, value: float) -> list[float]:
            return [0.0, value, 0.42, 0.1]

    ranks = FourRanks(ProcessInfo(1, 4, 1, 4))
    wait = InputWait()
    step(wait, 0, 1)
    step(wait, 1, 9)
    assert wait.report(ranks) == 0.42
    (warning,) = warnings
    assert "42 % of the time since the last line (rank 2," in warning
    assert "--num_parallel_calls" in warning
    assert "--decoded_cache_mb" in warning


@pytest.mark.parametrize("slow", [False, True])
def test_a_training_says_that_it_waits_for_its_input(
    slow, make_config, monkeypatch, numbered_set, tmp_path, warnings
):
    def input_of(
        config: Config, share: ExampleShard, num_ranks: int, *_: int
    ) -> Iterator[Batch]:
        numbers = tf.range(config.global_batch_size)
        images = tf.ones((config.global_batch_size, 32, 32, 3))
        batch = Batch(images, numbers % 4, numbers, numbers >= 0, tf.ones([4]))
        for _ in range(config.train_steps):
            if slow:
                time.sleep(1.0)
            yield batch

    monkeypatch.setattr(loop.batches, "training", input_of)
    config = make_config(
        13,
        "abcd",
        global_batch_size=4,
        train_steps=4,
        log_step_count_steps=2,
        checkpoint_every="4",
    )
    config = dataclasses.replace(config, model_dir=str(tmp_path))
    save_config(config)
    records = record_files.open_split(
        manifest.load(str(numbered_set), "train"), "train"
    )
    shard = ExampleShard(records, 0, 1, 13)
    loop.train_and_evaluate(Run(config, shard), job())
    lines = jsonl.read(tmp_path / jsonl.FILE)
    shares = [line["input_wait_share"] for line in lines]
    assert [line["step"] for line in lines] == [2, 4]
    # Behind its batch a step takes some 0.1 s here, and may take 2 s elsewhere.
    assert all(share > 0.3 if slow else share < 0.05 for share in shares)
    assert len(warnings) == (1 if slow else 0)
