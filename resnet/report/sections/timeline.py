"""What happened in a run and when: phases, starts, checkpoints, ends and failures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resnet.config import phases
from resnet.report.folder import RunFolder, best_top1
from resnet.report.words import megabytes, percent

PHASE, CHECKPOINT, START, FAULT = "phases", "checkpoints", "starts and ends", "faults"
_MOST_FACTS = 4  # Most facts shown of an event of another version.
_SHOWN_HOSTS = 4


@dataclass(frozen=True)
class Moment:
    """Something that happened.

    Attributes:
        lane: One of the constants of this module.
        step: The step; None if it isn't known.
        text: What happened, in words.
        time: When, in seconds since 1970; None if it isn't known.
        end_step: The last step of a phase; None for all else.
    """

    lane: str
    step: int | None
    text: str
    time: float | None = None
    end_step: int | None = None


def of_run(run: RunFolder) -> list[Moment]:
    """Returns what happened, in the order of steps and times as far as known."""
    moments = [*_phases(run), *_events(run), *_failures(run), *_checkpoints(run)]
    return sorted(moments, key=lambda one: (one.time or 0, one.step or 0))


def steps_per_epoch(run: RunFolder) -> float | None:
    """Returns the steps of an epoch, from settings or lines; None if neither has it."""
    if run.config is not None:
        return run.config.steps_per_epoch
    for line in reversed(run.lines):
        if line["step"] and line.get("epoch"):
            return float(line["step"] / line["epoch"])
    return None


def last_step(run: RunFolder) -> int:
    """Returns the last step that the run has logged or saved."""
    steps = [line["step"] for line in run.lines]
    return max([*steps, *(one.step for one in run.checkpoints)], default=0)


def _phases(run: RunFolder) -> Iterator[Moment]:
    if run.config is None:
        return
    of_run = run.config.phases
    for first, phase in zip(phases.first_steps(of_run), of_run, strict=True):
        text = f"phase {phase.name}: {phase.num_steps:,} steps"
        yield Moment(PHASE, first, text, end_step=first + phase.num_steps)


def _checkpoints(run: RunFolder) -> Iterator[Moment]:
    for saved in run.checkpoints:
        text = f"checkpoint, {megabytes(saved.bytes_)}"
        if (top1 := best_top1(saved)) is not None:
            text += f", top-1 {percent(top1)}"
        if ended := saved.metadata.get("ends_phase"):
            text += f", end of phase {ended}"
        yield Moment(CHECKPOINT, saved.step, text, saved.saved_at)


def _events(run: RunFolder) -> Iterator[Moment]:
    for event in run.events:
        step = event.get("step")
        lane = FAULT if event["event"] == "failure" else START
        yield Moment(
            lane,
            step if isinstance(step, int) else None,
            _words(event),
            float(event["time"]),
        )


def _words(event: Mapping[str, Any]) -> str:
    """Returns an event in words."""
    kind = event["event"]
    if kind == "start":
        step = event.get("step")
        text = f"resumed from step {step}" if step else "started"
        hosts = event.get("hosts")
        if isinstance(hosts, dict):
            shown = ", ".join(list(hosts)[:_SHOWN_HOSTS])
            more = ", …" if len(hosts) > _SHOWN_HOSTS else ""
            text += f" on {event.get('num_ranks')} rank(s) of {shown}{more}"
        return text
    if kind in ("end", "failure", "supervisor"):
        prefix = {"end": "ended", "failure": "failed"}.get(kind, kind)
        return f"{prefix}: {event.get('reason', '')}"
    facts = [(key, one) for key, one in event.items() if key not in ("event", "time")]
    listed = ", ".join(f"{key} {one}" for key, one in facts[:_MOST_FACTS])
    return f"{kind}: {listed}" if listed else str(kind)


def _failures(run: RunFolder) -> Iterator[Moment]:
    """Yields failures that only files of their own tell of."""
    logged = {str(event.get("reason")) for event in run.events}
    failure = run.failure
    if failure and (reason := str(failure.get("reason"))) not in logged:
        step = failure.get("step")
        step = step if isinstance(step, int) else None
        yield Moment(FAULT, step, f"failed ({failure.get('time')}): {reason}")
    for report in run.diverged:
        step = report.get("step")
        ranks = report.get("ranks")
        count = len(ranks) if isinstance(ranks, list) else 0
        yield Moment(
            FAULT,
            step if isinstance(step, int) else None,
            f"the loss was not finite on {count} rank(s)",
        )
