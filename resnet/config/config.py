"""The settings of one run, made once and then only read, and what follows from them."""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from resnet.base import intervals, json_file, settings, text
from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, COUNT_OR_ZERO, changeable_setting, setting
from resnet.base.text import counted, first_of, shortened
from resnet.config import networks, phases, topics
from resnet.config.phases import Phase, StepSettings
from resnet.config.recipe import TrainingSettings

# Files of a run, in its folder.
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
# By what a checkpoint is the best, and how texts call it.
BEST_METRICS = {
    "top1": "top-1",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mean_average_precision": "mAP",
}
_SHOWN_CHARACTERS = 60  # Longest value that an error quotes.
_SHOWN_DIFFERENCES = 3
# RESULTS.md, "Memory": ResNet-50 on 2 ranks with 32 images each took 3,347 MiB in
# float32 and 2,180 MiB in bfloat16. The difference gives the bytes of an activation,
# the rest those of TensorFlow, the program and its input.
_COPIES_OF_ACTIVATIONS = 1.72
_PROGRAM_BYTES = 756 << 20
# Settings of a run in steps, which another length changes.
_LENGTHS = {"train_steps", "num_steps", "warmup_length", "decay_start", "decay_end"}
_LENGTHS |= {"boundaries"}


@dataclass(frozen=True, kw_only=True)
class Config(TrainingSettings):
    """All settings of a run; `model_dir/config.json` holds them."""

    TOPIC: ClassVar[str] = topics.EVALUATION

    recipe: str
    num_classes: int
    class_names: tuple[str, ...]  # In the order of the labels.
    # Whether an image has any number of these as labels, rather than one of them.
    multi_label: bool = False
    num_train_examples: int
    phases: tuple[Phase, ...]
    # The digests of what the run reads (`manifest.Split.records_sha256` and
    # `weight_formats.files.sha256`); empty before it is opened, or if there is none.
    train_records_sha256: str = ""
    initial_weights_sha256: str = ""
    validation_records_sha256: str = changeable_setting("", flag=None)
    # The median of the images' shorter sides, which the recipe `own` follows from.
    median_side: int = changeable_setting(0, flag=None)
    # What became of the samples of 16 bits in the data set (`manifest.Manifest`).
    depth_window: tuple[int, ...] = changeable_setting((), flag=None)
    # The weights in the loss by `class_weights`, in the order of the labels; empty for
    # none, and before the data set is opened.
    class_weight_values: tuple[float, ...] = ()
    accumulation_steps: int = setting(
        1,
        "The micro-batches per rank and step that gradients are accumulated over.",
        elsewhere="grad_accum gradient_accumulation_steps accum_iter",
        bounds=COUNT,
        topic=topics.RATES,
    )
    seed: int = setting(
        0,
        "The random seed of weight initialization, shuffling and augmentation.",
        bounds=(0, 2**63 - 1),
        topic=topics.RECIPE,
    )
    num_ps: int = changeable_setting(
        1,
        "With --sync_mode=async, the number N of parameter servers: ranks 1 to N."
        " Rank 0 coordinates, and the others are workers.",
        bounds=COUNT,
        topic=topics.ASYNC,
        common=True,
    )
    shard_by: str = setting(
        "example",
        "How the data set is divided among ranks, one of {names}: from all record"
        " files, or only from those on a rank's node.",
        names=("example", "file"),
        topic=topics.DATA,
    )
    first_phase: str = setting(
        "",
        "The phase of the recipe that the run begins with; unset, the first.",
        topic=topics.RECIPE,
        unset="the first",
    )
    initial_weights: str = setting(
        "",
        "What to initialize the weights from: a run's folder, a checkpoint, a file"
        " (.safetensors, .npz, .pt or .pth), or a checkpoint of the TPU recipe.",
        elsewhere="pretrained weights init_checkpoint",
        topic=topics.CHECKPOINTS,
        common=True,
        unset="random",
    )
    data_dir: str = changeable_setting(
        "",
        "The folder of a data set, also of TensorFlow Datasets or the TPU scripts.",
        elsewhere="data data_path dataset dataset_dir records",
        topic=topics.DATA,
        common=True,
        unset="required",
    )
    model_dir: str = changeable_setting(
        "",
        "The folder of the run: its settings, logs and checkpoints.",
        elsewhere="output out_dir output_dir save_dir log_dir logdir resume",
        topic=topics.DATA,
        common=True,
        unset="required",
    )
    mode: str = changeable_setting(
        "train_and_eval",
        "What the run does, one of {names}: only trains, also evaluates, or evaluates"
        " the checkpoints of the run in --model_dir as they are saved.",
        names=("train", "train_and_eval", "eval"),
        common=True,
    )
    eval_batch_size: int = changeable_setting(
        200,
        "The number of examples in one step of evaluation, over all ranks.",
        bounds=COUNT,
    )
    eval_every: str = changeable_setting(
        "",
        "How often to evaluate, such as 500steps or 4epochs; unset, at the end.",
        elsewhere="eval_freq eval_interval eval_steps val_interval",
        interval_units=intervals.UNITS_OF_STEPS,
        common=True,
        unset="at the end",
    )
    stop_after_steps: int = changeable_setting(
        0,
        "The steps after which the run saves and exits, as for a trial; the schedules"
        " stay those of the whole run. 0 trains to the end. Without the flag, the"
        " same command resumes.",
        bounds=COUNT_OR_ZERO,
        topic=topics.CHECKPOINTS,
    )
    best_metric: str = changeable_setting(
        "top1",
        "The metric on the validation images by which a checkpoint is the best, one of"
        " {names}; the last is that of several labels an image.",
        elsewhere="eval_metric monitor metric_for_best_model",
        names=tuple(BEST_METRICS),
    )
    stop_at: float = changeable_setting(
        0.0,
        "The value of --best_metric, from 0 to 1, at which the run stops; 0 turns it"
        " off.",
        bounds=(0, 1),
    )
    recalibration_batches: int = changeable_setting(
        0,
        "The training batches of a rank from which batch normalization's statistics"
        " are computed again before an evaluation (PreciseBN); 0 keeps those of the"
        " training.",
        bounds=COUNT_OR_ZERO,
    )
    log_step_count_steps: int = changeable_setting(
        10, "The number of steps from one log line to the next.", bounds=COUNT
    )
    checkpoint_every: str = changeable_setting(
        "10 minutes",
        "How often to save a checkpoint, such as 500steps, 2epochs or 10minutes. While"
        " one is written, the newest replaces those that wait: short intervals skip"
        " some.",
        elsewhere="save_every save_freq save_steps checkpoint_freq",
        interval_units=intervals.UNITS,
        topic=topics.CHECKPOINTS,
        common=True,
    )
    keep_checkpoints: int = changeable_setting(
        5,
        "The newest checkpoints to keep, beside the best and the ends of phases.",
        bounds=COUNT,
        topic=topics.CHECKPOINTS,
    )
    report_every: str = changeable_setting(
        "",
        "How often to write report.html, a page about the run, in its folder, such as"
        " 10minutes or 1epoch; unset, never.",
        interval_units=intervals.UNITS,
        common=True,
        unset="never",
    )
    precision: str = setting(
        "float32",
        "The precision of computation, one of {names}: bf16 is bfloat16 with float32"
        " weights, auto what is measured to be faster here.",
        elsewhere="amp dtype bf16 fp16 mixed_precision",
        names=("float32", "bf16", "auto"),
        synonyms=(("bfloat16", "bf16"),),
        topic=topics.MACHINE,
        common=True,
    )
    num_parallel_calls: int = changeable_setting(
        0,
        "The number of threads per rank that decode images; 0 takes one per processor.",
        elsewhere="workers num_workers j",
        bounds=(0, 4096),
        topic=topics.MACHINE,
    )
    on_bad_record: str = changeable_setting(
        "fail",
        "The action on a corrupt record: fail ends the run, skip takes another record"
        " in its place and counts it.",
        names=("fail", "skip"),
        topic=topics.DATA,
    )
    record_log: str = changeable_setting(
        "",
        "The folder for a log of the records that each rank reads.",
        topic=topics.DATA,
        unset="none",
    )
    export_dir: str = changeable_setting(
        "",
        "The folder for a SavedModel of the network when the training ends, in a new"
        " subfolder named by the time in seconds.",
        topic=topics.CHECKPOINTS,
        unset="none",
    )
    audit_every: int = changeable_setting(
        0,
        "Once in so many steps, ranks compute each other's gradients again, and compare"
        " them before they are used; 0 never.",
        bounds=COUNT_OR_ZERO,
        topic=topics.MACHINE,
    )
    on_bad_rank: str = changeable_setting(
        "report",
        "The action on a rank that an audit finds to compute wrongly, one of {names}:"
        " stop saves after the step and ends with code 75. The step has the right"
        " gradients in any case.",
        names=("report", "stop"),
        topic=topics.MACHINE,
    )
    decoded_cache_mb: int = setting(
        0,
        "The megabytes (10**6) per rank for a cache of decoded images; 0 for none.",
        bounds=COUNT_OR_ZERO,
        decisive_part=bool,
        topic=topics.DATA,
    )

    @property
    def train_steps(self) -> int:
        """The number of steps of the whole run."""
        return phases.num_steps(self.phases)

    @property
    def last_step(self) -> int:
        """The step that training stops after, counted from the start of the recipe."""
        if not self.stop_after_steps:
            return self.train_steps
        first = phases.first_step(self.phases, self.first_phase)
        return min(first + self.stop_after_steps, self.train_steps)

    @property
    def steps_per_epoch(self) -> float:
        """The steps in one pass over the training examples, rarely a whole number."""
        return self.num_train_examples / self.global_batch_size

    def epoch(self, step: int) -> float:
        """Returns the number of passes over the training examples in `step` steps."""
        return step / self.steps_per_epoch

    def settings_at(self, step: int) -> StepSettings:
        """Returns the hyperparameters of one step of the run, from 0."""
        phase = phases.at(self.phases, step)
        return StepSettings(
            learning_rate=phases.learning_rate(self.phases, step),
            velocity_factor=phases.velocity_factor(
                self.phases, step, self.learning_rate_in_velocity
            ),
            nesterov_momentum=phase.momentum,
            decay=phase.weight_decay,
            ema_decay=self.ema_decay_at(step),
            step=step,
            decay_is_scaled=phase.layer_rates_scale_decay,
        )

    def ema_decay_at(self, step: int) -> float:
        """Returns the decay of the moving average of the weights, lower at first.

        Source: TensorFlow 1's ExponentialMovingAverage with num_updates.
        """
        done = step - phases.first_step(self.phases, self.first_phase)
        return min(self.ema_decay, (1 + done) / (10 + done))


def main_metric(config: Config | None) -> tuple[str, str]:
    """Returns the metric that tells most of a run, and how texts call it."""
    is_multi_label = config is not None and config.multi_label
    metric = "mean_average_precision" if is_multi_label else "top1"
    return metric, BEST_METRICS[metric]


def save_config(config: Config) -> None:
    """Writes `config.json`, with an absolute `data_dir`, to the `model_dir`."""
    folder = Path(config.model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if config.data_dir:
        config = dataclasses.replace(config, data_dir=os.path.abspath(config.data_dir))
    text = json.dumps(dataclasses.asdict(config), indent=2) + "\n"
    atomic_write_bytes(folder / CONFIG_FILE, text.encode())


def load_config(model_dir: str) -> Config:
    """Returns the settings of the run in a folder; without any it is a UserError."""
    folder = Path(model_dir)
    advice = "A training that has started writes it. Train, or name another --model_dir"
    what = "the settings of a training run"
    advice += f"{such_as_runs_near(folder)}."
    return json_file.read(folder / CONFIG_FILE, Config, what, advice)


def such_as_runs_near(folder: Path) -> str:
    """Returns the end of advice to name another folder than one without a run.

    It is the run that the folder, such as that of its checkpoints, is in; else the runs
    in the folder, and empty without any.
    """
    runs = [path for path in folder.absolute().parents[:2] if _holds_run(path)][:1]
    with contextlib.suppress(OSError):
        if not _holds_run(folder):
            runs = runs or sorted(filter(_holds_run, folder.iterdir()))
            return f", such as {first_of(map(str, runs))}" if runs else ""
    return ""


def _holds_run(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return (folder / CONFIG_FILE).is_file()
    return False


def differences(old: Config, new: Config) -> list[str]:
    """Returns the differences that change the result, as `name=old, now new`."""
    before, after = _deciding(old), _deciding(new)
    declared = settings.declarations(Config)
    different = []
    for name in {**before, **after}:
        values = before.get(name), after.get(name)
        parts = list(values)
        if name in declared:
            parts = list(map(declared[name].decisive_part, values))
        if parts[0] != parts[1]:
            was, is_now = (shortened(str(value), _SHOWN_CHARACTERS) for value in values)
            different.append(f"{name}={was}, now {is_now}")
    return different


def refuse_other(old: Config, new: Config) -> None:
    """Refuses to resume a run with settings that would give another result."""
    different = differences(old, new)
    names = {change.partition("=")[0].rpartition(" ")[2] for change in different}
    if "train_steps" in names and names <= _LENGTHS:
        lengths = [
            f"{counted(config.train_steps, 'step')}"
            f" ({counted(config.epoch(config.train_steps), 'epoch', '.4g')})"
            for config in (old, new)
        ]
        raise UserError(
            f"{new.model_dir} holds a run of {lengths[0]}; this command trains"
            f" {lengths[1]}. Give the --train_epochs or --train_steps of that run to"
            " continue it, or name another --model_dir."
        )
    if "recipe" in names:  # Nearly all others follow from it.
        different = [f"recipe={old.recipe}, now {new.recipe}"]
    if different:
        # First those that a flag sets, others often follow from them.
        flags = settings.declarations(Config)
        different.sort(
            key=lambda change: (
                (name := change.partition("=")[0]) not in flags
                or flags[name].flag is None
            )
        )
        shown = text.first_of(different, _SHOWN_DIFFERENCES, separator="; ")
        raise UserError(
            f"{new.model_dir} holds a run with other settings ({shown})."
            " Name another --model_dir, or the settings and the records of that run."
        )


def _deciding(config: Config) -> dict[str, Any]:
    """Returns the settings that decide the result, those of phases by "phase: name"."""
    declared = settings.declarations(Config)
    deciding = {
        name: value
        for name, value in vars(config).items()
        if name not in declared or declared[name].decides_the_result
    }
    deciding["train_steps"] = config.train_steps
    deciding["phases"] = ", ".join(phase.name for phase in config.phases)
    for phase in config.phases:
        values = dataclasses.asdict(phase)
        del values["name"]
        values.update(values.pop("schedule") or {})
        for name, value in values.items():
            is_clear = len(config.phases) == 1 and name not in deciding
            deciding[name if is_clear else f"{phase.name}: {name}"] = value
    return deciding


@dataclass(frozen=True)
class TrainedPhase:
    """A phase that a run trains."""

    settings: Phase
    first_step: int
    warmup_steps: int  # The length of the warmup that begins with it.
    peak_rate: float  # That this leads to; else that of the first step.
    corners: tuple[int, ...]  # Its ends, and steps where the rate is not smooth.
    rates: tuple[float, ...]  # The learning rates at the corners.

    @property
    def end_step(self) -> int:
        """The step behind the last one."""
        return self.first_step + self.settings.num_steps


@dataclass(frozen=True)
class Derived:
    """What follows from the settings of a run."""

    config: Config
    num_parts: int  # The number of parts of a global batch (`explain.num_parts`).

    @property
    def first_step(self) -> int:
        """The step that the run begins with."""
        return phases.first_step(self.config.phases, self.config.first_phase)

    @property
    def num_steps(self) -> int:
        """The steps from the first one to the end of the schedules."""
        return self.config.train_steps - self.first_step

    @property
    def micro_batch_size(self) -> int:
        """The number of examples that a part works on at a time."""
        parts = self.num_parts * self.config.accumulation_steps
        return self.config.global_batch_size // parts

    @functools.cached_property
    def phases(self) -> tuple[TrainedPhase, ...]:
        """The phases that the run trains."""
        of_run = self.config.phases
        return tuple(
            self._phase(first, phase)
            for first, phase in zip(phases.first_steps(of_run), of_run, strict=True)
            if first >= self.first_step
        )

    def _phase(self, first: int, phase: Phase) -> TrainedPhase:
        begin, schedule = phases.schedule_at(self.config.phases, first)
        last = first + phase.num_steps - 1
        after_warmup = begin + int(schedule.warmup_length)
        inner = [after_warmup - 1, after_warmup]
        if schedule.decay == "steps":
            inner += [begin + int(boundary) for boundary in schedule.boundaries]
        kinks = {step for step in inner if first < step < last}
        corners = tuple(sorted({first, last} | kinks))
        rates = tuple(map(self.curves["learning rate"], corners))
        warmup = 0
        if begin == first:
            warmup = min(int(schedule.warmup_length), phase.num_steps)
        peak = schedule.peak_value if warmup else rates[0]
        return TrainedPhase(phase, first, warmup, peak, corners, rates)

    @property
    def curves(self) -> dict[str, Callable[[int], float]]:
        """The values that change over the steps, as functions of the step."""
        of_run = self.config.phases

        def of_phases(name: str) -> Callable[[int], float]:
            return lambda step: float(getattr(phases.at(of_run, step), name))

        rate = functools.partial(phases.learning_rate, of_run)
        others = {name.replace("_", " "): of_phases(name) for name in phases.DRAWN}
        return {"learning rate": rate, **others}

    @property
    def num_parameters(self) -> int:
        """The number of trainable values."""
        config = self.config
        return networks.num_parameters(
            config.model, config.num_classes, config.se_ratio
        )

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of a step, in float32."""
        return 4 * self.num_parameters

    @property
    def rank_memory_bytes(self) -> int:
        """An estimate of the memory of a rank.

        It is that of the program, of the activations of a micro-batch, and in float32
        of weights, gradients, velocities and what else has their size.
        """
        config = self.config
        num_copies = 3 + (config.ema_decay > 0) + (config.lookahead_every > 0)
        num_copies += config.accumulation_steps > 1
        num_copies += config.compress != "none" and config.keeps_residuals
        has_momentum = any(phase.outer_momentum for phase in config.phases)
        is_local = any(phase.is_local for phase in config.phases)
        has_starts = has_momentum or (is_local and config.compress != "none")
        num_copies += has_starts + has_momentum
        image_size = max(phase.image_size for phase in config.phases)
        image_bytes = networks.num_activations(config.model, image_size)
        image_bytes *= 2 if config.precision == "bf16" else 4
        activations = _COPIES_OF_ACTIVATIONS * self.micro_batch_size * image_bytes
        return (
            _PROGRAM_BYTES
            + num_copies * self.gradient_bytes
            + round(activations)
            + config.decoded_cache_mb * 10**6
        )
