"""What a run is and what happened in it, in words: its summary and its timeline."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from resnet.base.text import counted, duration
from resnet.checkpoint import retention
from resnet.config import phases
from resnet.config.config import BEST_METRICS, Derived, main_metric
from resnet.metrics.accuracy import interval_text
from resnet.report import words
from resnet.report.charts import Table
from resnet.report.folder import RunFolder
from resnet.report.words import MISSING, number, percent
from resnet.watchdog import history

PHASE, CHECKPOINT, START, FAULT = "phases", "checkpoints", "starts and ends", "faults"
_KINDS = {"eval": "", "eval_ema": " (EMA weights)"}
_SETTINGS = {
    "image_size": " at {} px",
    "num_train_examples": " on {} training images",
    "num_classes": " of {} classes",
    "data_dir": " ({})",
}
# Training images and classes of known data sets.
_DATA_SETS = {
    (1_281_167, 1000): "ImageNet",
    (9_469, 10): "Imagenette",
    (50_000, 10): "CIFAR-10",
    (60_000, 10): "MNIST",
    (1_437, 10): "Handwritten digits",
}
# Names of folders that say nothing about the images in them.
_COMMON_FOLDERS = ("", "data", "records", "tfrecords", "tfrecord")
_RESNET = re.compile(r"resnet(\d+)(d?)")
_FAULTS = ("failure", "audit", history.SLOW)
_ENDS = {"end": "ended", "failure": "failed", "refusal": "another start was refused"}
_NUM_RESULTS = 7  # First columns of the table of runs, which are always shown.
_MOST_FACTS = 4  # Most facts shown of an event that isn't known.
_SHOWN_HOSTS = 4
_TOLD_DIFFERENCE = 0.01  # Of balanced accuracy and top-1, equal for classes of a size.


def title(folders: Sequence[RunFolder]) -> str:
    """Returns data, network and accuracy; of several runs, what is the same in all."""
    data, network = (
        names.pop() if len(names := {name_of(run) for run in folders}) == 1 else ""
        for name_of in (_data_name, _network_name)
    )
    parts = [network, f"{len(folders):,} runs" if len(folders) > 1 else ""]
    metrics = [main_metric(run.config) for run in folders]
    lasts = [
        last[metric]
        for run, (metric, _) in zip(folders, metrics, strict=True)
        if (last := last_evaluation(run))
    ]
    if len(lasts) == len(folders) and len(set(metrics)) == 1:
        ends = dict.fromkeys(percent(value) for value in (min(lasts), max(lasts)))
        parts.append(f"{metrics[0][1]} {' to '.join(ends)}")
    text = ", ".join(filter(None, parts))
    if not data or not text:
        return data or text or f"Report of {folders[0].name}"
    return f"{data}: {text}"


def _data_name(run: RunFolder) -> str:
    """Returns the name of a known data set, of its folder, or the number of classes."""
    config = run.config
    size = (config.num_train_examples, config.num_classes) if config else (0, 0)
    if size in _DATA_SETS:
        return _DATA_SETS[size]
    folder = PurePath(str(run.settings.get("data_dir") or "")).name
    if folder.lower() not in _COMMON_FOLDERS:
        return words.isolated(folder)
    return f"Images of {counted(size[1], 'class')}" if size[1] else ""


def _network_name(run: RunFolder) -> str:
    """Returns the name of a network as papers write it, such as ResNet-50-D."""
    model = str(run.settings.get("model") or "")
    if (match := _RESNET.fullmatch(model)) is None:
        return model
    return f"ResNet-{match[1]}{'-D' if match[2] else ''}"


def summary(run: RunFolder) -> tuple[str, str, str]:
    """Returns three lines: what it trains, how well, and how long on what."""
    return _what(run), _how_well(run), f"{_state(run)} {_how_long(run)}".strip()


def comparison(runs: Sequence[RunFolder]) -> Table:
    """Returns a table of several runs, without settings that are the same in all."""
    rows = []
    has_top1 = {_metric(run) for run in runs} == {"top1"}
    best_title = "top-1, best" if has_top1 else "best"
    names = {main_metric(run.config)[1] for run in runs}
    for run in runs:
        metric, name = main_metric(run.config)
        last, best = last_evaluation(run), best_evaluation(run)
        seconds = training_seconds(run)
        row = {
            "run": run.name,
            f"{' or '.join(sorted(names))}, last": percent(last[metric])
            if last
            else MISSING,
            "95 % interval": interval_text(last["top1"], last["count"])
            if last and "top1" in last
            else MISSING,
            best_title: _best(run, best) if best else MISSING,
            "cross-entropy": last.get("cross_entropy") if last else None,
            "training time": duration(seconds) if seconds else MISSING,
            "images/s": number(usual_speed(run), 3),
            "steps": run.last_step,
            "ranks": num_ranks(run),
        }
        for name in ("model", "recipe", "precision"):
            row[name] = words.value(run.settings.get(name, MISSING))
        rows.append(row)
    same = {
        name: number(rows[0][name])
        for name in list(rows[0])[_NUM_RESULTS:]
        if len({str(row[name]) for row in rows}) == 1
    }
    shared = [f"{name} {same[name]}" for name in same if same[name] != MISSING]
    caption = "The runs compared"
    if shared:
        caption += f"; in all of them, {', '.join(shared)}"
    header = [name for name in rows[0] if name not in same]
    cells = [[row[name] for name in header] for row in rows]
    return Table(caption, header, cells, "compared")


def last_evaluation(run: RunFolder) -> Mapping[str, Any] | None:
    """Returns the last line of evaluation, of EMA weights as programs take; or None."""
    return next(reversed(_results(run)), None)


def _results(run: RunFolder) -> list[Mapping[str, Any]]:
    lines = run.of_kind("eval_ema") or run.of_kind("eval")
    return list(filter({main_metric(run.config)[0], "count"}.issubset, lines))


def best_evaluation(run: RunFolder) -> Mapping[str, Any] | None:
    """Returns the best line of evaluation of the weights of `last_evaluation`."""
    metric = _metric(run)
    results = [line for line in _results(run) if metric in line]
    return max(results, key=lambda line: line[metric], default=None)


def _metric(run: RunFolder) -> str:
    """Returns the metric by which a checkpoint is the best."""
    return run.config.best_metric if run.config is not None else "top1"


def usual_speed(run: RunFolder) -> float | None:
    """Returns the median images per second; None if none were logged."""
    speeds = [line.get("images_per_second") for line in run.of_kind("train")]
    return statistics.median(filter(None, speeds)) if any(speeds) else None


def training_seconds(run: RunFolder) -> float | None:
    """Returns the seconds of all steps, without evaluations and saves.

    For the first line of a start, the images per second are the median ones.
    """
    usual, batch = usual_speed(run), run.settings.get("global_batch_size")
    if not usual or not isinstance(batch, int):
        return None
    seconds, before = 0.0, Derived(run.config, 1).first_step if run.config else 0
    for line in run.of_kind("train"):
        speed = line.get("images_per_second") or usual
        seconds += (line["step"] - before) * batch / speed
        before = line["step"]
    return seconds


def num_ranks(run: RunFolder) -> int | None:
    """Returns the ranks of the last start; None if unknown, as in asynchronous runs."""
    if run.config is not None and run.config.is_async:
        return None
    for source in (
        *reversed(run.events_of("start")),
        *(saved.metadata for saved in reversed(run.checkpoints)),
    ):
        if isinstance(count := source.get("num_ranks"), int):
            return count
    return None


def last_start(run: RunFolder) -> Mapping[str, Any]:
    """Returns the event of the last start; empty if none is logged."""
    return next(reversed(run.events_of("start")), {})


def hosts(run: RunFolder) -> dict[str, Any]:
    """Returns the ranks of each host at the last start; empty if none is logged."""
    of_start = last_start(run).get("hosts")
    return of_start if isinstance(of_start, dict) else {}


def _best(run: RunFolder, line: Mapping[str, Any]) -> str:
    metric = _metric(run)
    text = "" if metric == "top1" else f"{BEST_METRICS[metric]} "
    text += f"{percent(line[metric])}{_KINDS[line['kind']]}"
    return f"{text} at step {line['step']:,}"


def _what(run: RunFolder) -> str:
    settings = run.settings
    if not settings:
        return "The settings of the run are not known."
    text = words.value(settings.get("model", "A network"))
    for name, form in _SETTINGS.items():
        if value := settings.get(name):
            text += form.format(words.number(value))
    text += f". Recipe {words.value(settings.get('recipe', 'unknown'))}"
    if run.config is not None:
        epochs = run.config.epoch(run.config.train_steps)
        text += f": {epochs:.4g} epochs in {run.config.train_steps:,} steps of"
        text += f" {run.config.global_batch_size:,} images, {run.config.precision}"
    return f"{text}."


def _how_well(run: RunFolder) -> str:
    last, best = last_evaluation(run), best_evaluation(run)
    main, name = main_metric(run.config)
    for line in run.of_kind("eval_train")[-1:]:
        text = f"Without validation: {name} {percent(line[main])} on {line['count']:,}"
        return f"{text} of the training images, which the network has seen."
    if last is None or best is None:
        return "No evaluation has been logged yet."
    text = f"{name[0].upper()}{name[1:]} {percent(last[main])}"
    if main == "top1":
        text += f" (95 % interval: {interval_text(last[main], last['count'])})"
    if "top5" in last:
        text += f", top-5 {percent(last['top5'])}"
    if "mean_roc_auc" in last:
        text = f"mAP {percent(last[main])}, mean ROC-AUC {last['mean_roc_auc']:.4f}"
    mean = last.get("balanced_accuracy", last[main])
    if abs(mean - last[main]) >= _TOLD_DIFFERENCE:
        text += f", balanced accuracy {percent(mean)}"
        text += f", macro F1 {percent(last['macro_f1'])}"
    text += f" on {last['count']:,} validation images{_KINDS[last['kind']]}"
    views = run.settings.get("eval_views", "center")
    if views != "center":
        text += f", views {words.value(views)},"
    text += f" at step {last['step']:,}, the last evaluation."
    if best[_metric(run)] > last.get(_metric(run), 0.0):
        text += f" The best is {_best(run, best)}."
    return text


def _state(run: RunFolder) -> str:
    step = run.last_step
    of = f" of {run.config.train_steps:,}" if run.config is not None else ""
    if run.failure:
        reason = run.failure.get("reason", "for an unknown reason")
        return f"Failed, last at step {step:,}{of}: {reason}."
    ends = run.events_of("start", "end")
    has_ended = bool(ends) and ends[-1]["event"] == "end"
    is_at_end = run.config is not None and step >= run.config.train_steps
    if is_at_end and (has_ended or not ends):
        return f"Finished: {step:,} steps."
    if has_ended:
        return f"Ended at step {step:,}{of}: {ends[-1].get('reason')}."
    return f"Unfinished: step {step:,}{of}."


def _how_long(run: RunFolder) -> str:
    seconds, speed, ranks = training_seconds(run), usual_speed(run), num_ranks(run)
    cpu, of_hosts = str(last_start(run).get("cpu") or ""), hosts(run)
    if of_hosts:
        named = next(iter(of_hosts)) if len(of_hosts) == 1 else f"{len(of_hosts)} hosts"
        cpu = f"{named} ({cpu})" if cpu else named
    parts = (
        f"{duration(seconds)} of training" if seconds else "",
        f"{number(speed, 3)} images/s" if speed else "",
        counted(ranks, "rank") if ranks else "",
        cpu,
    )
    text = ", ".join(filter(None, parts))
    return f"{text}." if text else ""


@dataclass(frozen=True)
class Moment:
    """Something that happened, at a step and time (since 1970) if these are known."""

    lane: str  # One of the constants of this module.
    step: int | None
    text: str
    time: float | None = None
    end_step: int | None = None  # The last step of a phase; None for all else.


def timeline(run: RunFolder) -> list[Moment]:
    """Returns what happened, in the order of steps and times as far as known."""
    moments = [*_phases(run), *_events(run), *_failures(run), *_checkpoints(run)]
    return sorted(moments, key=lambda moment: (moment.time or 0, moment.step or 0))


def _phases(run: RunFolder) -> Iterator[Moment]:
    of_run = run.config.phases if run.config is not None else ()
    for first, phase in zip(phases.first_steps(of_run), of_run, strict=True):
        text = f"phase {phase.name}: {phase.num_steps:,} steps"
        yield Moment(PHASE, first, text, end_step=first + phase.num_steps)


def _checkpoints(run: RunFolder) -> Iterator[Moment]:
    metric = _metric(run)
    for saved in run.checkpoints:
        text = f"checkpoint, {saved.num_bytes / 1e6:,.1f} MB"
        try:
            value = retention.best_value(saved.metadata, metric)
            if value is not None:
                text += f", {BEST_METRICS[metric]} {percent(value)}"
        except (KeyError, TypeError):  # Its metadata are damaged.
            pass
        if ended := saved.metadata.get("ends_phase"):
            text += f", end of phase {ended}"
        yield Moment(CHECKPOINT, saved.step, text, saved.saved_at)


def _step(facts: Mapping[str, Any]) -> int | None:
    step = facts.get("step")
    return step if isinstance(step, int) else None


def _events(run: RunFolder) -> Iterator[Moment]:
    for event in run.events:
        lane = FAULT if event["event"] in _FAULTS else START
        yield Moment(lane, _step(event), _event(event), float(event["time"]))


def _event(event: Mapping[str, Any]) -> str:
    kind = event["event"]
    if kind == "start":
        step = event.get("step")
        text = f"resumed from step {step}" if step else "started"
        of_hosts = event.get("hosts")
        if isinstance(of_hosts, dict):
            shown = ", ".join(list(of_hosts)[:_SHOWN_HOSTS])
            more = ", …" if len(of_hosts) > _SHOWN_HOSTS else ""
            ranks = counted(event.get("num_ranks", 0), "rank", "")
            text += f" on {ranks} of {shown}{more}"
        return text
    if "reason" in event:
        return f"{_ENDS.get(kind, kind)}: {event['reason']}"
    facts = [f"{key} {event[key]}" for key in event if key not in ("event", "time")]
    return f"{kind}: {', '.join(facts[:_MOST_FACTS])}" if facts else str(kind)


def _failures(run: RunFolder) -> Iterator[Moment]:
    """Yields failures that only files of their own tell of."""
    logged = {str(event.get("reason")) for event in run.events}
    failure = run.failure
    if failure and (reason := str(failure.get("reason"))) not in logged:
        text = f"failed ({failure.get('time')}): {reason}"
        yield Moment(FAULT, _step(failure), text)
    for report in run.diverged:
        ranks = report.get("ranks")
        count = len(ranks) if isinstance(ranks, list) else 0
        text = f"the loss was not finite on {counted(count, 'rank')}"
        yield Moment(FAULT, _step(report), text)
