"""The settings of one run, made once and then only read."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet.base import intervals, json_file, settings
from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, COUNT_OR_ZERO, setting
from resnet.base.text import shortened
from resnet.config import phases, topics
from resnet.config.phases import Phase, StepSettings
from resnet.config.recipe import TrainingSettings

# Files of a run, in its folder.
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
_SHOWN_CHARACTERS = 60  # Longest value that an error quotes.


@dataclass(frozen=True, kw_only=True)
class Config(TrainingSettings):
    """All settings of a run; `model_dir/config.json` holds them.

    A later start in the same `model_dir` may change only the settings that don't decide
    the result.

    Attributes:
        class_names: The names of the classes, in the order of the labels.
        num_train_examples: The number of training examples of the data set.
        phases: Their lengths are in steps, and their learning rates are those for the
            run's global batch.

    The help texts of the other fields say what these are.
    """

    recipe: str
    num_classes: int
    class_names: tuple[str, ...]
    num_train_examples: int
    phases: tuple[Phase, ...]
    accumulation_steps: int = setting(
        1,
        "The number of micro-batches per rank and step that gradients are accumulated"
        " over.",
        bounds=COUNT,
        topic=topics.RATES,
    )
    seed: int = setting(
        0,
        "The random seed of weight initialization, shuffling and augmentation.",
        bounds=(0, 2**63 - 1),
        topic=topics.RECIPE,
    )
    num_ps: int = setting(
        1,
        "With --sync_mode=async, the number N of parameter servers: ranks 1 to N."
        " Rank 0 coordinates, and the other ranks are workers.",
        bounds=COUNT,
        decides_the_result=False,
        topic=topics.ASYNC,
        common=True,
    )
    shard_by: str = setting(
        "example",
        "How the data set is divided among ranks, one of {names}: by example, where a"
        " rank reads from all record files, or by file, where it reads only those on"
        " its node.",
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
        "What to initialize the weights from: a run's folder, one of its checkpoints, a"
        " file of weights (.safetensors, .npz, .pt or .pth), or a TensorFlow checkpoint"
        " of the TPU recipe.",
        topic=topics.CHECKPOINTS,
        common=True,
        unset="random",
    )
    data_dir: str = setting(
        "",
        "The folder of a converted data set, or of one that TensorFlow Datasets or the"
        " TPU scripts wrote.",
        decides_the_result=False,
        topic=topics.DATA,
        common=True,
        unset="required",
    )
    model_dir: str = setting(
        "",
        "The folder of the run: its settings, logs and checkpoints.",
        decides_the_result=False,
        topic=topics.DATA,
        common=True,
        unset="required",
    )
    mode: str = setting(
        "train_and_eval",
        "What the run does, one of {names}: only trains, or also evaluates; or eval,"
        " which evaluates the checkpoints of the run in --model_dir as they are saved,"
        " with the settings of that run.",
        names=("train", "train_and_eval", "eval"),
        decides_the_result=False,
        topic=topics.EVALUATION,
        common=True,
    )
    eval_batch_size: int = setting(
        200,
        "The number of examples in one step of evaluation, over all ranks.",
        bounds=COUNT,
        decides_the_result=False,
        topic=topics.EVALUATION,
    )
    eval_every: str = setting(
        "",
        "How often to evaluate, such as 500steps or 4epochs; unset, only after the last"
        " step.",
        interval_units=intervals.UNITS_OF_STEPS,
        decides_the_result=False,
        topic=topics.EVALUATION,
        common=True,
        unset="at the end",
    )
    stop_after_steps: int = setting(
        0,
        "The number of steps, counted from the first one of the run, after which it"
        " saves and exits, as for a trial; the schedules stay those of the whole run. 0"
        " trains to the end. Without the flag, the same command resumes.",
        bounds=COUNT_OR_ZERO,
        decides_the_result=False,
        topic=topics.CHECKPOINTS,
    )
    stop_at_top1: float = setting(
        0.0,
        "The validation top-1 accuracy, from 0 to 1, at which the run stops; 0 turns"
        " early stopping off.",
        bounds=(0, 1),
        decides_the_result=False,
        topic=topics.EVALUATION,
    )
    recalibration_batches: int = setting(
        0,
        "The number of training batches, each as large as a rank's in training, from"
        " which batch normalization's statistics are computed again before an"
        " evaluation (PreciseBN); 0 keeps the statistics of the training.",
        bounds=COUNT_OR_ZERO,
        decides_the_result=False,
        topic=topics.EVALUATION,
    )
    log_step_count_steps: int = setting(
        10,
        "The number of steps from one log line to the next.",
        bounds=COUNT,
        decides_the_result=False,
        topic=topics.EVALUATION,
    )
    checkpoint_every: str = setting(
        "10 minutes",
        "How often to save a checkpoint, such as 500steps, 2epochs or 10minutes.",
        interval_units=intervals.UNITS,
        decides_the_result=False,
        topic=topics.CHECKPOINTS,
        common=True,
    )
    keep_checkpoints: int = setting(
        5,
        "The number of newest checkpoints that are kept, in addition to the best one"
        " and those at the ends of phases.",
        bounds=COUNT,
        decides_the_result=False,
        topic=topics.CHECKPOINTS,
    )
    report_every: str = setting(
        "",
        "How often to write report.html, a page about the run, in the folder of the"
        " run, such as 10minutes or 1epoch; unset, never.",
        interval_units=intervals.UNITS,
        decides_the_result=False,
        topic=topics.EVALUATION,
        common=True,
        unset="never",
    )
    precision: str = setting(
        "float32",
        "The precision of computation, one of {names}: bf16 is bfloat16 with float32"
        " weights, and auto the one that is measured to be faster on this machine.",
        names=("float32", "bf16", "auto"),
        synonyms=(("bfloat16", "bf16"),),
        topic=topics.MACHINE,
        common=True,
    )
    num_parallel_calls: int = setting(
        0,
        "The number of threads per rank that decode images; 0 takes one per processor.",
        bounds=(0, 4096),
        decides_the_result=False,
        topic=topics.MACHINE,
    )
    on_bad_record: str = setting(
        "fail",
        "The action on a corrupt record: fail ends the run, skip takes another record"
        " in its place and counts it.",
        names=("fail", "skip"),
        decides_the_result=False,
        topic=topics.DATA,
    )
    record_log: str = setting(
        "",
        "The folder for a log of the records that each rank reads; unset, there is no"
        " log.",
        decides_the_result=False,
        topic=topics.DATA,
        unset="none",
    )
    export_dir: str = setting(
        "",
        "The folder for a SavedModel of the network when the training ends, in a new"
        " subfolder named by the time in seconds; unset, there is none.",
        decides_the_result=False,
        topic=topics.CHECKPOINTS,
        unset="none",
    )
    decoded_cache_mb: int = setting(
        0,
        "The memory per rank for a cache of decoded images, in megabytes of 10**6"
        " bytes; 0 turns the cache off.",
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
        return phases.settings_of_step(
            self.phases, step, self.learning_rate_in_velocity, self.ema_decay_at(step)
        )

    def ema_decay_at(self, step: int) -> float:
        """Returns the decay of the moving average of the weights in one step.

        It is lower in the first steps of a run, so that the average soon forgets the
        initial weights: min(decay, (1 + n) / (10 + n)) after n steps.

        Source: TensorFlow 1's ExponentialMovingAverage with num_updates.
        """
        done = step - phases.first_step(self.phases, self.first_phase)
        return min(self.ema_decay, (1 + done) / (10 + done))


def save_config(config: Config) -> None:
    """Writes `config.json` to the settings' `model_dir`, which is created if missing.

    `data_dir` is absolute in it, since the run is also used from other folders.

    Raises:
        OSError: If the file can't be written.
    """
    folder = Path(config.model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if config.data_dir:
        config = dataclasses.replace(config, data_dir=os.path.abspath(config.data_dir))
    text = json.dumps(dataclasses.asdict(config), indent=2) + "\n"
    atomic_write_bytes(folder / CONFIG_FILE, text.encode())


def load_config(model_dir: str) -> Config:
    """Returns the settings of the run in a folder.

    Raises:
        UserError: If there is no `config.json`, or `save_config` didn't write it.
    """
    return json_file.read(
        Path(model_dir) / CONFIG_FILE,
        Config,
        "the settings of a training run",
        "Restore the file, or name another --model_dir.",
    )


def differences(old: Config, new: Config) -> list[str]:
    """Returns the differences that change the result, as `name=old, now new`."""
    before, after = _deciding(old), _deciding(new)
    return [
        f"{name}={shortened(str(before.get(name)), _SHOWN_CHARACTERS)},"
        f" now {shortened(str(after.get(name)), _SHOWN_CHARACTERS)}"
        for name in {**before, **after}
        if _decisive(name, before.get(name)) != _decisive(name, after.get(name))
    ]


def _decisive(name: str, value: Any) -> Any:
    """Returns the part of a setting's value that decides the result."""
    declaration = settings.declarations(Config).get(name)
    return declaration.decisive_part(value) if declaration else value


def refuse_other(old: Config, new: Config) -> None:
    """Refuses to resume a run with settings that would give another result.

    Raises:
        UserError: Naming the settings that differ.
    """
    if different := differences(old, new):
        raise UserError(
            f"{new.model_dir} holds a run with other settings"
            f" ({'; '.join(different)}). Name another --model_dir, or the settings of"
            " that run."
        )


def _deciding(config: Config) -> dict[str, Any]:
    """Returns the settings that decide the result, those of phases by "phase: name"."""
    declared = settings.declarations(Config)
    deciding = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(Config)
        if field.name not in declared or declared[field.name].decides_the_result
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
