"""Finds out which of the ranks was right that had different states.

A run ends when ranks differ in what must be equal. With two of them, or as many on both
sides, it is unknown which is wrong. But the run that resumes comes to the same step
again, with the same bits, and so confirms the state of those that were right, unless
wrong weights had reached theirs already, through the gradients of a later step.
"""

from pathlib import Path
from typing import Any

from absl import logging

from resnet.base.text import first_of
from resnet.distributed.communicator import Communicator
from resnet.watchdog import history

EVENT, _SETTLED = "disagreement", "settled"


class OpenDisagreement:
    """The last disagreement of a run, until it is settled.

    `step` is that after which the ranks had different states; None without one.
    """

    def __init__(self, model_dir: Path, communicator: Communicator) -> None:
        self._model_dir, self._communicator = model_dir, communicator
        last: dict[str, Any] = {}
        if communicator.rank == 0:
            for event in history.read(model_dir)[0]:
                if event["event"] in (EVENT, _SETTLED):
                    last = event
        last = communicator.broadcast(last)
        is_open = last.get("event") == EVENT
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
