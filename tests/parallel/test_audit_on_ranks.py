"""Ranks find wrong gradients of each other before they are used."""

import itertools
import os
import platform

import numpy as np
import pytest
import tensorflow as tf

from resnet import resnet_main
from resnet.checkpoint import step_dirs
from resnet.data import batches
from resnet.distributed.communicator import AgreedFailure
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import Threads
from resnet.metrics.step_costs import StepCosts
from resnet.runtime.job import Job
from resnet.training import audit as audits
from resnet.training.audit import Audit
from resnet.training.train_step import TrainStep
from resnet.watchdog import history
from tests.main_run import TRAINING_FLAGS
from tests.parallel.train_some_steps import begin

NUM_TRIES = int(os.environ.get("AUDIT_TRIES", "12"))


def flipped(values, random):
    """Returns the values with one bit of one of them inverted."""
    place = random.integers(len(values))
    array = np.array(values[place]).reshape(-1)
    array.view(np.uint32)[random.integers(array.size)] ^= 1 << random.integers(32)
    changed = tf.reshape(tf.constant(array), values[place].shape)
    return [*values[:place], changed, *values[place + 1 :]]


def scaled(values, random):
    # The first convolutions of a block have no gradients while its last gamma is 0.
    place = random.choice([i for i, value in enumerate(values) if np.any(value)])
    return [*values[:place], values[place] * 1.5, *values[place + 1 :]]


def nearly_right(values, random):
    return [value * 1.001 for value in values]


def negated(values, random):
    return [values[0], *(-value for value in values[1:])]


FAULTS = (flipped, scaled, nearly_right, negated)


class Trial:
    """Audits of the same step of a small run, on ranks of some hosts and kernels."""

    def __init__(self, monkeypatch, communicator, records, folder, **settings) -> None:
        self.folder = folder
        self.state, reading = begin(
            communicator,
            records,
            audit_every=1,
            augmentation="random_crop",
            model_dir=str(folder),
            **settings,
        )
        exchange = GradientExchange(communicator.collectives, self.state.names)
        self.step = TrainStep(self.state, self.state.config.phases[0], exchange)
        threads = Threads(1, 1, (0,), None)
        self.audit = Audit(self.state, reading, Job(communicator, threads))
        per_step = self.state.config.accumulation_steps
        *_, self.last = itertools.islice(batches.train_batches(reading), per_step)
        # Each audit is of step 1.
        if self.audit._audited is not None:
            chosen = list(self.audit._batches_of(self.audit._audited, np.array([0])))
            self.audit._batches = iter(lambda: chosen[0], None)
        self.right = self.step.gradients(self.last, 0)
        self._compute, self._monkeypatch = self.step.gradients, monkeypatch
        self.communicator, self.rank = communicator, communicator.rank

    def __call__(self, culprit: int, fault, random, faulty_calls=(0,)):
        """Returns whether the gradients are right, after a fault of one rank.

        A rank computes its own gradients first, then those that it audits.
        """
        calls = itertools.count()

        def gradients(batch, step):
            values = self._compute(batch, step)
            is_faulty = next(calls) in faulty_calls and self.rank == culprit
            return fault(values, random) if is_faulty else values

        self._monkeypatch.setattr(self.step, "gradients", gradients)
        costs = StepCosts(self.communicator, 1)
        values = self.audit(self.step, self.last, costs)
        return all(map(np.array_equal, values, self.right))

    def events(self):
        return history.read(self.folder)[0]


@pytest.fixture
def on_hosts(monkeypatch, communicator, records, tmp_path):
    """Returns a function that makes a trial on ranks of named hosts."""

    def make(hosts: str, **settings) -> Trial:
        monkeypatch.setattr(platform, "node", lambda: hosts[communicator.rank])
        return Trial(monkeypatch, communicator, records, tmp_path, **settings)

    return make


@pytest.mark.ranks(3)
@pytest.mark.parametrize("hosts", ["abc", "aab"])
def test_faults_are_found_and_the_right_host_is_named(on_hosts, communicator, hosts):
    trial = on_hosts(hosts)
    for number in range(NUM_TRIES):
        random = np.random.default_rng(number)  # The faulty rank alone goes on with it.
        culprit, faulty_call = random.integers([3, 2])
        fault = FAULTS[number % len(FAULTS)]
        is_right = trial(culprit, fault, random, (faulty_call,))
        assert all(communicator.allgather(is_right)), (number, fault)
        events = trial.events()
        assert len(communicator.broadcast(events)) == number + 1
        event = communicator.broadcast(events)[-1]
        assert (event["rank"], event["host"]) == (culprit, hosts[culprit])


@pytest.mark.ranks(3)
def test_a_wrong_label_or_pixel_is_found(on_hosts, communicator):
    trial = on_hosts("abc")
    labels = trial.last.labels + tf.constant([0, 1])
    pixels = tf.tensor_scatter_nd_add(trial.last.images, [[1, 9, 9, 0]], [1.0])
    for changed in ({"labels": labels}, {"images": pixels}):
        values = trial.step.gradients(trial.last._replace(**changed), 0)
        is_right = trial(2, lambda _, __, values=values: values, None)
        assert all(communicator.allgather(is_right))
    events = communicator.broadcast(trial.events())
    assert [event["rank"] for event in events] == [2, 2]


def test_of_two_ranks_a_passing_fault_is_found(on_hosts, communicator):
    trial, random = on_hosts("ab"), np.random.default_rng(1)
    assert all(communicator.allgather(trial(1, flipped, random)))
    (event,) = communicator.broadcast(trial.events())
    assert event["rank"] == 1


def test_two_ranks_that_go_on_to_disagree_end_the_run(on_hosts):
    trial = on_hosts("ab")
    with pytest.raises(AgreedFailure, match=r"rank 0 on a, rank 1 on b differ"):
        trial(1, negated, None, range(9))


def test_no_alarm_without_a_fault(on_hosts, communicator):
    trial = on_hosts(
        "ab", global_batch_size=12, accumulation_steps=3, label_smoothing=0.1, mixup=0.2
    )
    for _ in range(20):
        assert trial(-1, negated, None)
    assert trial.events() == []


@pytest.mark.ranks(3)
def test_ranks_of_other_kernels_are_not_compared(
    on_hosts, communicator, monkeypatch, caplog
):
    kernels = "xxy"[communicator.rank]
    monkeypatch.setattr(audits, "_kernels", lambda _: kernels)
    trial = on_hosts("abc")
    assert trial.audit._auditors == [[1], [0], []]
    assert trial(2, negated, None) == (communicator.rank != 2)
    assert trial.events() == []


def weights_of(model_dir):
    path = step_dirs.of_step(model_dir, 6) / "state.data-00000-of-00001"
    return path.read_bytes()


def test_audits_change_no_bit_of_a_run_and_can_stop_it(
    run, records, tmp_path, monkeypatch, communicator
):
    flags = (*TRAINING_FLAGS, f"--data_dir={records}", "--label_smoothing=0.1")

    def train(name: str, *more: str, **kind):
        return run(resnet_main, *flags, f"--model_dir={tmp_path / name}", *more, **kind)

    train("plain")
    train("audited", "--audit_every=2")
    compute, calls = TrainStep.gradients, itertools.count()

    def gradients(self, batch, step):
        values = compute(self, batch, step)
        is_faulty = communicator.rank == 1 and next(calls) == 2  # Its own of step 2.
        return nearly_right(values, None) if is_faulty else values

    monkeypatch.setattr(TrainStep, "gradients", gradients)
    stopping = ("--audit_every=1", "--on_bad_rank=stop")
    done = train("stopped", *stopping, code=75)
    assert "stopped after step 2, which is saved, since rank 1 on " in done.stderr
    train("stopped", *stopping)
    kept = [weights_of(tmp_path / name) for name in ("plain", "audited", "stopped")]
    assert kept[0] == kept[1] == kept[2]
    events = history.read(tmp_path / "stopped")[0]
    assert [event["event"] for event in events] == [
        *("start", "audit", "end", "failure"),
        *("start", "end"),
    ]


# Wrong weights reach the gradients of the next step, and so the weights of all ranks.
@pytest.mark.parametrize(("last_right_step", "is_settled"), [(5, True), (4, False)])
def test_a_resumed_run_says_which_of_two_ranks_was_right(
    run, records, tmp_path, monkeypatch, communicator, last_right_step, is_settled
):
    flags = (*TRAINING_FLAGS, f"--data_dir={records}", f"--model_dir={tmp_path}")
    run(resnet_main, *flags, "--stop_after_steps=3")
    step = TrainStep.__call__

    def drifting(self, last, settings, *arguments, **more):
        result = step(self, last, settings, *arguments, **more)
        if communicator.rank == 1 and settings.step in drifting_steps:
            variable = self._state.trainable_variables[0]
            variable.assign(variable + 1e-6)
        return result

    drifting_steps = range(last_right_step, 6)
    monkeypatch.setattr(TrainStep, "__call__", drifting)
    done = run(resnet_main, *flags, code=1)
    assert "it is unknown which are wrong" in done.stderr
    monkeypatch.setattr(TrainStep, "__call__", step)
    done = run(resnet_main, *flags)
    (settled,) = [
        event["reason"]
        for event in history.read(tmp_path)[0]
        if event["event"] == "settled"
    ]
    assert ("after step 6 is now that which rank 0 on " in settled) == is_settled
    assert (", so rank 1 on " in settled) == is_settled
    assert settled in done.stderr
    done = run(resnet_main, *flags)
    assert "is now that" not in done.stderr
