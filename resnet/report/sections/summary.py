"""What a run is, in three lines: what it trains, how well, and how long on what."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from resnet.config import phases
from resnet.report import words
from resnet.report.folder import RunFolder
from resnet.report.sections import timeline
from resnet.report.words import MISSING, number, percent

_KINDS = {"eval": "", "eval_ema": " (EMA weights)"}


def lines(run: RunFolder) -> tuple[str, str, str]:
    """Returns the three lines."""
    return _what(run), _how_well(run), f"{_state(run)} {_how_long(run)}".strip()


def comparison(runs: Sequence[RunFolder]) -> list[list[str]]:
    """Returns rows for a table of several runs; the first has the headers."""
    header = [
        *("run", "model", "recipe", "top-1, last", "top-1, best", "cross-entropy"),
        *("steps", "training time", "images/s", "ranks", "precision"),
    ]
    rows = []
    for run in runs:
        last, best = last_evaluation(run), best_evaluation(run)
        seconds = training_seconds(run)
        rows.append(
            [
                run.name,
                words.value(run.settings.get("model", MISSING)),
                words.value(run.settings.get("recipe", MISSING)),
                percent(last["top1"]) if last else MISSING,
                _accuracy(best) if best else MISSING,
                number(last.get("cross_entropy")) if last else MISSING,
                f"{timeline.last_step(run):,}",
                words.duration(seconds) if seconds else MISSING,
                number(usual_speed(run), 3),
                words.value(num_ranks(run) or MISSING),
                words.value(run.settings.get("precision", MISSING)),
            ]
        )
    return [header, *rows]


def last_evaluation(run: RunFolder) -> Mapping[str, Any] | None:
    """Returns the last line of evaluating the weights; None if there is none."""
    found = [line for line in run.of_kind("eval") if "top1" in line]
    return found[-1] if found else None


def best_evaluation(run: RunFolder) -> Mapping[str, Any] | None:
    """Returns the line of evaluation with the highest top-1; None without any."""
    found = [line for line in run.lines if line["kind"] in _KINDS and "top1" in line]
    return max(found, key=lambda line: line["top1"], default=None)


def usual_speed(run: RunFolder) -> float | None:
    """Returns the median images per second; None if none were logged."""
    speeds = [
        line["images_per_second"]
        for line in run.of_kind("train")
        if line.get("images_per_second")
    ]
    return statistics.median(speeds) if speeds else None


def training_seconds(run: RunFolder) -> float | None:
    """Returns the time of all steps, without evaluations and saves, in seconds.

    It is the sum over lines of images divided by images per second. The first line of
    a start may have no speed, and counts with the median one.
    """
    usual, batch = usual_speed(run), run.settings.get("global_batch_size")
    if not usual or not isinstance(batch, int):
        return None
    seconds, before = 0.0, 0
    if run.config is not None:
        before = phases.first_step(run.config.phases, run.config.first_phase)
    for line in run.of_kind("train"):
        speed = line.get("images_per_second") or usual
        seconds += (line["step"] - before) * batch / speed
        before = line["step"]
    return seconds


def num_ranks(run: RunFolder) -> int | None:
    """Returns the number of ranks of the last start; None if nothing tells it.

    That of an asynchronous run isn't known: its coordinator saves and logs alone.
    """
    if run.config is not None and run.config.is_async:
        return None
    for source in (
        *reversed([event for event in run.events if event["event"] == "start"]),
        *(one.metadata for one in reversed(run.checkpoints)),
    ):
        if isinstance(count := source.get("num_ranks"), int):
            return count
    return None


def _accuracy(line: Mapping[str, Any]) -> str:
    kind = _KINDS.get(line["kind"], "")
    return f"{percent(line['top1'])}{kind} at step {line['step']:,}"


def _what(run: RunFolder) -> str:
    settings = run.settings
    if not settings:
        return "The settings of the run are not known."
    text = f"{words.value(settings.get('model', 'A network'))}"
    if size := settings.get("image_size"):
        text += f" at {size} px"
    if isinstance(count := settings.get("num_train_examples"), int):
        text += f" on {count:,} training images"
    if isinstance(count := settings.get("num_classes"), int):
        text += f" of {count:,} classes"
    if data_dir := settings.get("data_dir"):
        text += f" ({data_dir})"
    text += f". Recipe {words.value(settings.get('recipe', 'unknown'))}"
    if run.config is not None:
        epochs = run.config.epoch(run.config.train_steps)
        text += f": {epochs:.4g} epochs in {run.config.train_steps:,} steps of"
        text += f" {run.config.global_batch_size:,} images, {run.config.precision}"
    return f"{text}."


def _how_well(run: RunFolder) -> str:
    last, best = last_evaluation(run), best_evaluation(run)
    if last is None or best is None:
        return "No evaluation has been logged yet."
    text = f"Top-1 {percent(last['top1'])}, top-5 {percent(last.get('top5'))}"
    if count := last.get("count"):
        text += f" on {count:,} validation images"
    views = run.settings.get("eval_views", "center")
    if views != "center":
        text += f", views {words.value(views)},"
    text += f" at step {last['step']:,}, the last evaluation."
    if best["top1"] > last["top1"]:
        text += f" The best is {_accuracy(best)}."
    return text


def _state(run: RunFolder) -> str:
    step = timeline.last_step(run)
    of = f" of {run.config.train_steps:,}" if run.config is not None else ""
    # That of a locked folder is of another job, which the run doesn't notice.
    if run.failure and not run.failure.get("locked"):
        reason = run.failure.get("reason", "for an unknown reason")
        return f"Failed, last at step {step:,}{of}: {reason}."
    ends = [event for event in run.events if event["event"] in ("start", "end")]
    has_ended = bool(ends) and ends[-1]["event"] == "end"
    is_at_end = run.config is not None and step >= run.config.train_steps
    if is_at_end and (has_ended or not ends):  # Earlier versions wrote no events.
        return f"Finished: {step:,} steps."
    if has_ended:
        return f"Ended at step {step:,}{of}: {ends[-1].get('reason')}."
    return f"Unfinished: step {step:,}{of}."


def _how_long(run: RunFolder) -> str:
    parts = []
    if seconds := training_seconds(run):
        parts.append(f"{words.duration(seconds)} of training")
    if speed := usual_speed(run):
        parts.append(f"{number(speed, 3)} images/s")
    if ranks := num_ranks(run):
        parts.append(f"{ranks:,} rank(s)")
    if machine := _machine(run):
        parts.append(machine)
    return f"{', '.join(parts)}." if parts else ""


def _machine(run: RunFolder) -> str:
    starts = [event for event in run.events if event["event"] == "start"]
    if not starts:
        return ""
    hosts = starts[-1].get("hosts")
    text = str(starts[-1].get("cpu") or "")
    if isinstance(hosts, dict) and hosts:
        named = next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts"
        text = f"{named} ({text})" if text else str(named)
    return text
