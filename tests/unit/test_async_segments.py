"""The coordinator of an asynchronous run: its segments, its speed and its failures."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records import manifest
from resnet.base import intervals
from resnet.base.errors import UserError
from resnet.config import phases, rounds
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.data import record_files
from resnet.evaluation.evaluations import is_due_after
from resnet.hardware.placement import Threads
from resnet.training.parameter_servers import roles, serving
from resnet.training.parameter_servers.roles import Workers
from resnet.training.parameter_servers.training import AsyncTraining, end_of_segment

COLLAPSE = imagenet.COLLAPSE_72EP_4K


def found_step_by_step(config, step: int) -> int:
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    while True:
        step += 1
        if (
            step >= config.last_step
            or phases.ended_by(config.phases, step) is not None
            or rounds.ends_interval(config, every, step)
            or is_due_after(config, step)
        ):
            return step


@settings(deadline=None, max_examples=60)
@given(
    checkpoint_every=st.sampled_from(["1epoch", "7steps", "3epochs", "10minutes"]),
    eval_every=st.sampled_from(["", "5steps", "2epochs"]),
    num_examples=st.integers(40, 90),
    stop_after_steps=st.sampled_from([0, 50]),
    done=st.floats(0, 1, exclude_max=True),
)
def test_a_segment_ends_at_the_first_step_that_is_due(
    checkpoint_every, eval_every, num_examples, stop_after_steps, done
):
    given_settings = {
        "global_batch_size": 32,
        "checkpoint_every": checkpoint_every,
        "eval_every": eval_every,
        "stop_after_steps": stop_after_steps,
    }
    config = resolve(COLLAPSE, given_settings, num_examples, ("a", "b"))
    step = int(done * config.last_step)
    assert end_of_segment(config, step) == found_step_by_step(config, step)


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_change_of_the_rate_counts_once_in_a_step(num_workers):
    config = resolve(COLLAPSE, {"global_batch_size": 64}, 6400, ("a", "b"))
    assert config.learning_rate_in_velocity
    step = config.train_steps - 2  # The rate falls to a quarter.
    of_step = config.settings_at(step)
    first = step * num_workers
    factors = [
        phases.velocity_factor_of_part(of_step, number, num_workers)
        for number in range(first, first + num_workers)
    ]
    momentum = config.phases[-1].momentum
    rates = [phases.learning_rate(config.phases, one) for one in (step - 1, step)]
    assert rates[0] > 1.5 * rates[1] > 0
    expected = momentum**num_workers * rates[0] / rates[1]
    assert math.prod(factors) == pytest.approx(expected)


def test_a_failed_closure_names_the_corrupt_record_wherever_its_error_is_raised(
    numbered_set,
):
    record_set = manifest.load(str(numbered_set), "train")
    records = record_files.open_split(record_set, "train")
    offsets = records.offset_of_example.copy()
    offsets[2] = 10**6
    training = object.__new__(AsyncTraining)
    training._records = dataclasses.replace(records, offset_of_example=offsets)
    training._examples = {0: tf.constant([0, 1]), 1: tf.constant([2, 3])}

    def fail(*args: object) -> None:
        raise tf.errors.DataLossError(None, None, "a record is corrupt")

    training._state = None
    training._closures = SimpleNamespace(start=fail, next_result=fail)
    with pytest.raises(UserError, match="byte 1000000"):
        training._await_result()
    settings = {"learning_rate": 0.1, "velocity_factor": 0.9, "nesterov_momentum": 0.9}
    of_step = SimpleNamespace(**settings)
    training._config = SimpleNamespace(seed=0, settings_at=lambda step: of_step)
    training._workers = Workers(2, 1, 1.0)
    what = SimpleNamespace(examples=tf.constant([4, 5]))
    with pytest.raises(UserError, match="byte 1000000"):
        training._start(4, fail, what)


def test_a_child_that_was_suspended_with_its_rank_is_not_lost(monkeypatch):
    program = "import time; print(7, flush=True); time.sleep(60)"
    monkeypatch.setattr(serving, "_START", program)
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(serving, "time", clock)
    server = serving.Child(roles.Role(roles.SERVER, 0), Threads((0,), 1, 1))
    try:
        assert server.await_port() == 7
        found = []
        for seconds in (4, 4, 1000, 4, 4, 4):
            now[0] += seconds
            found.append(server.why_lost(10))
    finally:
        server.kill()
    assert found == ["", "", "", "", "", "has been silent for 12 s"]
