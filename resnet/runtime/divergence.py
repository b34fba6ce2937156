"""Stops a run whose numbers are no longer finite, or whose ranks no longer agree."""

import itertools
import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.text import first_of
from resnet.distributed import digests
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.watchdog import history


def check_loss(
    losses: tuple[float, float],
    step: int,
    examples: np.ndarray,
    model_dir: Path,
    communicator: Communicator,
) -> None:
    """Ends a run whose loss is not finite, and records the examples of the step.

    `model_dir/diverged-step-00000123.json` then lists the examples of each rank whose
    own loss is not finite, by their indices in the whole split, of which `examples`,
    `[local_batch]` int64, are this rank's. The losses are the mean of all ranks, each
    of which must call it, and this rank's; `step` is the number of steps done.

    Raises:
        AgreedFailure: On all ranks, if the loss is not finite.
    """
    loss, local_loss = losses
    if math.isfinite(loss):
        return
    own_report = None
    if not math.isfinite(local_loss):
        own_report = {
            "rank": communicator.rank,
            "host": platform.node(),
            "loss": str(local_loss),
            "examples": examples.tolist(),
        }
    reports = [report for report in communicator.allgather(own_report) if report]
    path = model_dir / f"diverged-step-{step:08d}.json"
    if communicator.rank == 0:
        text = json.dumps({"step": step, "ranks": reports}) + "\n"
        # The loss matters more than a full disk.
        with communicator.writing(path.name), suppress(OSError):
            atomic_write_bytes(path, text.encode())
    names = [f"rank {report['rank']} on {report['host']}" for report in reports[:5]]
    raise AgreedFailure(
        f"the loss of step {step} is not finite on"
        f" {', '.join(names) or 'the mean of all ranks'}:"
        f" the training has diverged, or an input record is corrupt ({path} lists the"
        " records of this step). The last checkpoint is from before this step. Lower"
        " --peak_learning_rate or lengthen the warmup."
    )


class Disagreement(AgreedFailure):
    """The ranks have different states: after `step`, those of `digests` on `hosts`."""

    def __init__(
        self, sentence: str, step: int, digests: Sequence[int], hosts: Sequence[str]
    ) -> None:
        super().__init__(sentence)
        self.facts = {"step": step, "digests": list(digests), "hosts": list(hosts)}


def check_equal(what: str, digests: Sequence[object], hosts: Sequence[str]) -> None:
    """Ends a run if what must be the same on all ranks isn't.

    The digests and hosts are those of all ranks, in their order. What most ranks have
    counts as right; with a tie, as of two ranks, it is unknown which is.

    Raises:
        AgreedFailure: If digests differ, with the ranks and hosts.
    """
    (usual, num_usual), *others = Counter(digests).most_common()
    if not others:
        return
    ranks_of: dict[bool, list[str]] = {True: [], False: []}
    for rank, (digest, host) in enumerate(zip(digests, hosts, strict=True)):
        ranks_of[digest == usual].append(f"rank {rank} on {host}")
    equal, different = map(first_of, ranks_of.values())
    if num_usual > others[0][1]:
        blamed = (
            f"those of {different} differ from the others. Memory or the network of"
            " that host may be faulty: start again without it."
        )
    else:
        blamed = (
            f"those of {equal} differ from those of {different}, and it is unknown"
            " which are wrong. Memory or the network of a host may be faulty: test"
            " these hosts before you start again."
        )
    raise AgreedFailure(f"{what} must be the same on all ranks; {blamed}")


def check_state(
    step: int,
    common: Mapping[str, Any],
    own: Mapping[str, Any],
    communicator: Communicator,
) -> int:
    """Ends a run whose state after a step is not finite, or not equal on all ranks.

    Every rank must call it, with the tensors that all ranks have in common and with
    those of its own, by name. Of the former, the ranks compare digests: the CRC-32C of
    all bytes, which is computed as fast as memory is read. Returns the digest of the
    state (`digests.digest_of_state`).

    Raises:
        AgreedFailure: On all ranks, naming the first such tensor and the ranks.
    """
    arrays = [digests.array(tensor) for tensor in common.values()]
    of_tensors = digests.digests_of(arrays)
    own_digest = digests.digest_by_name(dict(zip(common, of_tensors, strict=True)))
    bad_own = _first_not_finite(own, map(digests.array, own.values()))
    bad = _first_not_finite(common, arrays)
    report = bad_own, bad, digests.combined(of_tensors), platform.node()
    *names_of_bad, digests_of_ranks, hosts = zip(
        *communicator.allgather(report), strict=True
    )
    ranks = [f"rank {rank} on {host}" for rank, host in enumerate(hosts)]
    # Of a rank's own first: in a mean over ranks, it isn't finite on any of them.
    for names in names_of_bad:
        if any(names):
            raise AgreedFailure(
                f"{next(filter(None, names))} after step {step} is not finite on"
                f" {first_of(list(itertools.compress(ranks, names)))}, and not saved:"
                " the training has diverged, or memory is faulty. The checkpoints"
                " before it stay. Lower --peak_learning_rate or lengthen the warmup."
            )
    if len(set(digests_of_ranks)) > 1:
        columns = zip(common, *communicator.allgather(of_tensors), strict=True)
        name = next(name for name, *column in columns if len(set(column)) > 1)
        what = f"the values of {name} after step {step}"
        try:
            check_equal(what, digests_of_ranks, hosts)
        except AgreedFailure as error:
            of_states = communicator.allgather(own_digest)
            raise Disagreement(str(error), step, of_states, hosts) from error
    return own_digest


def _first_not_finite(names: Iterable[str], arrays: Iterable[np.ndarray]) -> str:
    """Returns the name of the first array with NaN or infinity; empty without one.

    A finite sum, which is computed without a copy, needs finite values.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in zip(names, arrays, strict=True):
            if not np.isfinite(array.sum()) and not np.isfinite(array).all():
                return name
    return ""


DISAGREEMENT, _SETTLED = "disagreement", "settled"


class OpenDisagreement:
    """The last disagreement of a run, until it is settled, which says who was right.

    With two ranks, or as many on both sides, it is unknown which is wrong. But the run
    that resumes comes to the same step again, with the same bits, and so confirms the
    state of those that were right, unless wrong weights had reached theirs already,
    through the gradients of a later step.

    `step` is that after which the ranks had different states; None without one.
    """

    def __init__(self, model_dir: Path, communicator: Communicator) -> None:
        self._model_dir, self._communicator = model_dir, communicator
        last: dict[str, Any] = {}
        if communicator.rank == 0:
            for event in history.read(model_dir)[0]:
                if event["event"] in (DISAGREEMENT, _SETTLED):
                    last = event
        last = communicator.broadcast(last)
        is_open = last.get("event") == DISAGREEMENT
        # Other numbers of ranks come to other bits.
        is_open = is_open and len(last["digests"]) == communicator.num_ranks
        self._facts = last if is_open else {}
        self.step: int | None = self._facts.get("step")

    def settle(self, step: int, digest: int | None) -> None:
        """Says which ranks were right, at the step of the disagreement.

        The digest is that of the state, which is now the same on all ranks.
        """
        if step != self.step or digest is None:
            return
        self.step = None
        ranks: dict[bool, list[str]] = {True: [], False: []}
        for rank, host in enumerate(self._facts["hosts"]):
            is_right = self._facts["digests"][rank] == digest
            ranks[is_right].append(f"rank {rank} on {host}")
        right, wrong = map(first_of, (ranks[True], ranks[False]))
        sentence = (
            f"the state after step {step} is now another one than those of {wrong}:"
            " wrong weights of one had reached the others, or hosts or software are"
            " others now. Audits (--audit_every) name a rank before its gradients are"
            " used."
        )
        if right:
            sentence = (
                f"the state after step {step} is now that which {right} had, so"
                f" {wrong} had computed or stored a wrong one. Its processor or memory"
                " may be faulty: run resnet-selftest there, or leave this host out."
            )
        if self._communicator.rank == 0:
            logging.warning("%s", sentence)
            history.append(self._model_dir, _SETTLED, step=step, reason=sentence)
