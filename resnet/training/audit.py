"""Audits of gradients: ranks compute each other's micro-batches again, and compare.

A faulty core computes wrongly without a sign (Dixit et al. 2021, arXiv:2102.11245), and
the mean of gradients takes that to the weights of all ranks. Since order, augmentation
and kernels are deterministic, another rank can compute the same from the same weights,
bit for bit.
"""

import hashlib
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from resnet import native
from resnet.base.text import first_of
from resnet.data import batches, example_order
from resnet.data.input_pipeline import Batch, Reading
from resnet.distributed import digests
from resnet.distributed.communicator import AgreedFailure
from resnet.hardware import cpu_features
from resnet.metrics.step_costs import StepCosts
from resnet.optim.train_state import TrainState
from resnet.runtime import versions
from resnet.runtime.job import Job
from resnet.training.train_step import TrainStep
from resnet.watchdog import history

_STREAM = 3000  # For `mix_seed`; no other use has this number.
_DECISIVE_FLAGS = ("avx", "amx", "fma", "asimd", "sve", "bf16")  # Their beginnings.


class Place(NamedTuple):
    """Where a rank computes. Ranks with the same kernels compute the same bits."""

    host: str
    kernels: str


def due_steps(seed: int, every: int, first: int, end: int) -> np.ndarray:
    """Returns the steps from `first` to before `end` that are audited, `[n]` int64.

    They are one in each `every` steps, which depends on the seed.
    """
    blocks = np.arange(first // every, -(-end // every))
    steps = blocks * every + example_order.mix_seed(seed, _STREAM, blocks) % every
    return steps[(first <= steps) & (steps < end)]


def auditors(places: Sequence[Place]) -> list[list[int]]:
    """Returns for each rank those that can audit it: the usual auditor, then others.

    Each rank is the usual auditor of at most one. All have the kernels of the rank,
    and are on other hosts where that is possible. A rank whose kernels no other has
    gets an empty list.
    """
    result: list[list[int]] = [[] for _ in places]
    for kernels in {place.kernels for place in places}:
        ranks = [rank for rank, place in enumerate(places) if place.kernels == kernels]
        ranks.sort(key=lambda rank: places[rank].host)
        # By as many as the fullest host has, so that each is shifted to another host.
        most = max(Counter(places[rank].host for rank in ranks).values())
        shift = min(most, len(ranks) // 2)
        for index, rank in enumerate(ranks):
            start = (index + shift) % len(ranks)
            others = [r for r in ranks[start:] + ranks[:start] if r != rank]
            hosts = {places[other].host for other in (rank, *others[:1])}
            # Of those that decide if the two disagree, first those on other hosts.
            judges = sorted(others[1:], key=lambda other: places[other].host in hosts)
            result[rank] = others[:1] + judges
    return result


class Audit:
    """The audits of a run on one rank.

    `bad_rank` names the last rank that has computed wrongly, if any, `bad_hosts` the
    hosts of all.
    """

    def __init__(self, state: TrainState, reading: Reading, job: Job) -> None:
        """Chooses who audits whom; to be called on all ranks if audits are wanted."""
        self._config, self._state = state.config, state
        self._communicator, self._reading = job.communicator, reading
        self.bad_rank, self.bad_hosts = "", set[str]()
        self._due: frozenset[int] = frozenset()
        if not self._config.audit_every:
            return
        own = Place(platform.node(), _kernels(job.threads.num_intra_threads))
        self._places: list[Place] = self._communicator.allgather(own)
        self._auditors = auditors(self._places)
        alone = [self._name(r) for r, others in enumerate(self._auditors) if not others]
        if alone and self._communicator.rank == 0:
            logging.warning(
                f"no other rank has the kernels and threads of {first_of(alone)},"
                " which can't be audited"
            )
        steps = due_steps(
            self._config.seed,
            self._config.audit_every,
            state.step,
            self._config.last_step,
        )
        self._due = frozenset(steps.tolist())
        self._audited = next(
            (
                rank
                for rank, others in enumerate(self._auditors)
                if others[:1] == [self._communicator.rank]
            ),
            None,
        )
        if self._audited is not None:
            self._batches = self._batches_of(self._audited, steps)

    @property
    def stops_run(self) -> bool:
        """Whether the run is to stop, since a rank has computed wrongly."""
        return bool(self.bad_rank) and self._config.on_bad_rank == "stop"

    def __call__(
        self, train_step: TrainStep, last: Batch, costs: StepCosts
    ) -> list[tf.Tensor] | None:
        """Returns the right loss and gradients of the last micro-batch, if it is due.

        All ranks call it before each step, before the exchange of gradients. `costs`
        are those of the step, of whose time an audit is no part.

        Raises:
            AgreedFailure: On all ranks, if the ranks disagree and none can be believed.
        """
        step = self._state.step
        if step not in self._due:
            return None
        own = train_step.gradients(last, step)
        with costs.apart():
            return self._compare(train_step, own)

    def _compare(
        self, train_step: TrainStep, own: list[tf.Tensor]
    ) -> list[tf.Tensor] | None:
        """Returns the right gradients of this rank: its own, if there is no fault."""
        again = None
        if self._audited is not None:
            again = self._compute(train_step, next(self._batches))
        reports = self._communicator.allgather((_digest(own), _digest(again)))
        right: list[tf.Tensor] | None = own
        for rank, others in enumerate(self._auditors):
            if others and reports[others[0]][1] != reports[rank][0]:
                votes = [(rank, reports[rank][0]), (others[0], reports[others[0]][1])]
                computed = {rank: own, others[0]: again}.get(self._communicator.rank)
                judged = self._judge(train_step, rank, votes, computed)
                right = judged if rank == self._communicator.rank else right
        return right

    def _judge(
        self,
        train_step: TrainStep,
        rank: int,
        votes: list[tuple[int, int | None]],
        computed: list[tf.Tensor] | None,
    ) -> list[tf.Tensor] | None:
        """Returns the right gradients of a rank to it, and reports who has others.

        The votes are the ranks that have computed them, this rank `computed`, and the
        digests. A third rank computes them too or, without one, both do so again.
        """
        judges = self._auditors[rank][1:2] or [voter for voter, _ in votes]
        again = None
        if self._communicator.rank in judges:
            number = np.array([self._state.step])
            again = self._compute(train_step, next(self._batches_of(rank, number)))
        of_ranks = self._communicator.allgather(_digest(again))
        votes = [*votes, *((judge, of_ranks[judge]) for judge in judges)]
        (right, count), *others = Counter(digest for _, digest in votes).most_common()
        wrong = {voter for voter, digest in votes if digest != right}
        if count < 2 or (others and others[0][1] == count):
            names = first_of([self._name(voter) for voter in sorted({*dict(votes)})])
            raise AgreedFailure(
                f"the gradients of rank {rank} in step {self._state.step + 1} must be"
                f" the same on each rank that computes them; {names} differ, and it is"
                " unknown which are wrong. Run resnet-selftest on these hosts, and"
                " start again without the faulty one."
            )
        self._report(rank, wrong)
        if rank not in wrong:
            return computed
        giver = next(voter for voter, digest in votes if digest == right)
        arrays = None
        if self._communicator.rank == giver:
            candidates = filter(None, (computed, again))
            values = next(v for v in candidates if _digest(v) == right)
            arrays = [value.numpy() for value in values]
        arrays = self._communicator.broadcast(arrays, giver)
        return [tf.constant(array) for array in arrays]

    def _report(self, rank: int, wrong: Iterable[int]) -> None:
        """Reports the ranks that have computed the gradients of a rank wrongly."""
        step = self._state.step + 1
        for culprit in sorted(wrong):
            self.bad_rank = self._name(culprit)
            self.bad_hosts.add(self._places[culprit].host)
            whose = "its" if culprit == rank else f"rank {rank}'s"
            sentence = (
                f"{self.bad_rank} has computed {whose} gradients of step {step}"
                " differently from the ranks that agree, whose gradients are taken. Its"
                " processor or memory may be faulty: run resnet-selftest there, or"
                " leave this host out."
            )
            if self._communicator.rank == 0:
                logging.warning("%s", sentence)
                with self._communicator.writing(history.FILE):
                    history.append(
                        Path(self._config.model_dir),
                        "audit",
                        step=step,
                        rank=culprit,
                        host=self._places[culprit].host,
                        reason=sentence,
                    )

    def _batches_of(self, rank: int, steps: np.ndarray) -> Iterator[Batch]:
        """Returns the last micro-batches of a rank in some steps."""
        per_step = self._config.accumulation_steps
        last = steps * per_step + per_step - 1
        return batches.chosen_batches(self._reading, rank, last)

    def _compute(self, train_step: TrainStep, batch: Batch) -> list[tf.Tensor]:
        """Returns loss and gradients of another rank's micro-batch in this step.

        Batch normalization's averages, which are those of this rank's batches, stay.
        """
        averages = self._state.batch_norm_averages
        before = [tf.identity(average) for average in averages]
        gradients = train_step.gradients(batch, self._state.step)
        for average, value in zip(averages, before, strict=True):
            average.assign(value)
        return gradients

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._places[rank].host}"


def _digest(tensors: Sequence[tf.Tensor] | None) -> int | None:
    return None if tensors is None else digests.digest(tensors)


def _kernels(num_threads: int) -> str:
    """Returns what decides the bits that this rank computes, apart from the inputs."""
    flags = sorted(
        flag for flag in cpu_features.flags() if flag.startswith(_DECISIVE_FLAGS)
    )
    facts = native.instruction_set(), num_threads, flags, versions.describe()
    return hashlib.sha256(repr(facts).encode()).hexdigest()
