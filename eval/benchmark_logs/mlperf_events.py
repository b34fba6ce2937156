"""The events of a run that MLPerf Training's log has, from what the run has recorded.

Source of the keys and of their order: mlcommons/logging, mlperf_logging/mllog/
constants.py and compliance_checker/training_4.0.0, whose benchmark resnet is ResNet-50
on ImageNet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.config import Config
from resnet.metrics.jsonl import Line

_BENCHMARK = "resnet"
_PREFIXES = {"lars": "lars_opt", "momentum": "sgd_opt", "sgdw": "sgd_opt"}
_OPTIMIZERS = {"lars": "lars", "momentum": "sgd", "sgdw": "sgd"}


@dataclass(frozen=True)
class Submission:
    """What a run doesn't know of its submission.

    Attributes:
        org: The organization.
        platform: The name of the machines.
        division: "closed" or "open".
        status: The availability of the machines, such as "onprem".
        cleared_caches: Whether the caches of the hosts were cleared before the run.
    """

    org: str
    platform: str
    division: str
    status: str
    cleared_caches: bool


@dataclass(frozen=True)
class Event:
    """A line of the log.

    Attributes:
        kind: "start" or "end" of an interval, or "point" in time.
        key: MLPerf's name of the event.
        time: The time in seconds since 1970.
        value: A JSON value.
        metadata: JSON values by name.
    """

    kind: str
    key: str
    time: float
    value: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


def of_run(
    config: Config,
    lines: Sequence[Line],
    history: Sequence[Mapping[str, Any]],
    submission: Submission,
    target_top1: float,
) -> list[Event]:
    """Returns the events in the order of their times.

    The time of a run begins with its first process, also that of the imports and of
    the graph's tracing, which MLPerf would allow to leave out.

    Args:
        config: The settings of the run.
        lines: The lines of its `metrics.jsonl`.
        history: The events of its `history.jsonl`.
        submission: What the run doesn't know.
        target_top1: The top-1 accuracy that ends the run as a success.

    Raises:
        UserError: If the run was interrupted, has no evaluations, has an optimizer that
            the log has no name for, or lacks times.
    """
    if config.optimizer not in _OPTIMIZERS:
        raise UserError(
            "expected a run with one of the optimizers that MLPerf's log has names for"
            f" ({', '.join(_OPTIMIZERS)}); got {config.optimizer}. Train with one of"
            " them."
        )
    start, ended = _start_and_end(history)
    began = start["process_start"]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    if not evaluations:
        raise UserError(
            "expected a run with evaluations; it has none. Train with"
            " --eval_every=4epochs."
        )
    if any("time" not in line or "seconds" not in line for line in evaluations):
        raise UserError(
            "expected the time and seconds of each evaluation in metrics.jsonl; they"
            " are missing, as in runs of earlier versions. Train again."
        )
    reached = [line for line in evaluations if line["top1"] >= target_top1]
    if reached:
        evaluations = evaluations[: evaluations.index(reached[0]) + 1]
        ended = reached[0]["time"]
    status = "success" if reached else "aborted"
    return [
        Event("point", "cache_clear", began, submission.cleared_caches),
        Event("start", "init_start", began),
        *_settings(
            *(config, start.get("num_ranks", 1), evaluations[0]["count"]),
            *(submission, began),
        ),
        Event("end", "init_stop", began),
        Event("start", "run_start", began),
        *_blocks(config, evaluations, began),
        Event("end", "run_stop", ended, metadata={"status": status}),
    ]


def _start_and_end(
    history: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], float]:
    """Returns the only start of a run, and the time of its end."""
    starts = [event for event in history if event["event"] == "start"]
    ends = [event["time"] for event in history if event["event"] == "end"]
    if len(starts) != 1 or not ends:
        raise UserError(
            "expected a run that was started once and has ended, since MLPerf times a"
            f" run without interruption; this one has {len(starts)} starts and"
            f" {len(ends)} ends in its history.jsonl."
        )
    if "process_start" not in starts[0]:
        raise UserError(
            "expected the time process_start in history.jsonl; it is missing, as in"
            " runs of earlier versions. Train again."
        )
    return starts[0], ends[-1]


def _settings(
    config: Config,
    num_ranks: int,
    num_evaluated: int,
    submission: Submission,
    time: float,
) -> list[Event]:
    """Returns an event for each fact about submission and settings.

    Hyperparameters that differ between the phases of a run are left out, as are those
    of a schedule that has none of this name. So is the weight decay of SGDW, which
    isn't a part of the gradient as sgd's is: the log has no key for it. The decay steps
    are those from the start of the run to the end of the decay.
    """
    first = config.phases[0]
    numbers: dict[str, Any] = {
        "submission_benchmark": _BENCHMARK,
        "submission_division": submission.division,
        "submission_org": submission.org,
        "submission_platform": submission.platform,
        "submission_status": submission.status,
        "seed": config.seed,
        "global_batch_size": config.global_batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
        "train_samples": config.num_train_examples,
        "eval_samples": num_evaluated,
        "opt_name": _OPTIMIZERS[config.optimizer],
    }
    if config.optimizer == "lars":
        numbers["lars_epsilon"] = 0.0
    micro_batch = config.global_batch_size // num_ranks // config.accumulation_steps
    numbers["model_bn_span"] = micro_batch  # Each rank normalizes by its own.
    prefix = _PREFIXES[config.optimizer]
    for name in ("momentum", "weight_decay"):
        values = {getattr(phase, name) for phase in config.phases}
        is_decoupled = config.optimizer == "sgdw" and name == "weight_decay"
        if len(values) == 1 and not is_decoupled:
            numbers[f"{prefix}_{name}"] = values.pop()
    schedule = first.schedule
    if schedule and all(phase.schedule is None for phase in config.phases[1:]):
        warmup = int(schedule.warmup_length)
        numbers[f"{prefix}_base_learning_rate"] = schedule.peak_value
        name = "lars_opt" if config.optimizer == "lars" else "opt"
        numbers[f"{name}_learning_rate_warmup_epochs"] = _epoch(config, warmup)
        if schedule.decay == "polynomial" and schedule.decay_end is not None:
            numbers[f"{prefix}_end_learning_rate"] = schedule.end_value
            numbers[f"{prefix}_learning_rate_decay_poly_power"] = schedule.power
            numbers[f"{prefix}_learning_rate_decay_steps"] = schedule.decay_end
    return [Event("point", key, time, value) for key, value in numbers.items()]


def _blocks(config: Config, evaluations: Sequence[Line], began: float) -> list[Event]:
    """Returns the blocks of training, and the evaluation after each of them."""
    first = phases.first_step(config.phases, config.first_phase)
    events, since, last_epoch = [], began, float(_epoch(config, first))
    for line in evaluations:
        epoch = _epoch(config, line["step"])
        block = {"first_epoch_num": last_epoch, "epoch_count": epoch - last_epoch}
        at = {"epoch_num": epoch}
        evaluation = line["time"] - line["seconds"]
        events += [
            Event("start", "block_start", since, metadata=block),
            Event("end", "block_stop", evaluation, metadata=block),
            Event("start", "eval_start", evaluation, metadata=at),
            Event("point", "eval_accuracy", line["time"], line["top1"], at),
            Event("end", "eval_stop", line["time"], metadata=at),
        ]
        since, last_epoch = line["time"], epoch
    return events


def _epoch(config: Config, step: int) -> float:
    """Returns the epochs up to a step: whole ones within a step of an epoch's end."""
    epochs = config.epoch(step)
    is_end = abs(epochs - round(epochs)) * config.steps_per_epoch <= 1
    return round(epochs) if is_end and round(epochs) else round(epochs, 4)
