"""The settings of one run, made once and then only read."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.atomic_files import atomic_write_bytes
from data_prep.errors import UserError
from resnet import phases, scaling, setting_bounds
from resnet.phases import Phase
from resnet.recipe import Recipe
from resnet.schedules import Curve

FILE = "config.json"


def _free(default: Any) -> Any:
    return field(default=default, metadata={"decides_the_result": False})


@dataclass(frozen=True)
class Config:
    """Everything that a run follows; `model_dir/config.json` holds it.

    A later start in the same `model_dir` may change only the fields that don't decide
    the result; the size of a decoded cache, but not whether there is one. Learning
    rates are those of whole global batches; lengths are in steps, one step being one
    global batch. What isn't told here is told by `recipe.Recipe`, `phases.Phase` and
    the flags.
    """

    recipe: str
    model: str
    num_classes: int
    class_names: tuple[str, ...]
    num_train_examples: int
    image_size: int
    eval_crop_fraction: float
    global_batch_size: int
    phases: tuple[Phase, ...]
    batch_norm_decay: float
    eval_crop: str = "crop_then_resize"
    optimizer: str = "momentum"
    nesterov: bool = True
    momentum_correction: bool = False
    trust_coefficient: float = 0.001
    zero_last_gamma: bool = True
    clip_norm: float = 0.0
    ema_decay: float = 0.0
    accumulation_steps: int = 1
    precision: str = "float32"
    seed: int = 0
    shard_by: str = "example"
    first_phase: str = ""
    initial_weights: str = ""
    data_dir: str = _free("")
    model_dir: str = _free("")
    mode: str = _free("train_and_eval")
    eval_batch_size: int = _free(200)
    eval_every: str = _free("")
    stop_at_top1: float = _free(0.0)
    recalibration_batches: int = _free(0)
    log_step_count_steps: int = _free(10)
    checkpoint_every: str = _free("1 epoch")
    keep_checkpoints: int = _free(5)
    num_parallel_calls: int = _free(0)
    on_bad_record: str = _free("fail")
    record_log: str = _free("")
    decoded_cache_mb: int = field(default=0, metadata={"decides_by": bool})

    @property
    def train_steps(self) -> int:
        """Steps of the whole run."""
        return phases.num_steps(self.phases)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in one pass over the training examples; seldom a whole number."""
        return self.num_train_examples / self.global_batch_size

    def epoch(self, step: int) -> float:
        """Returns how many passes over the training examples `step` steps are."""
        return step / self.steps_per_epoch


def save(config: Config) -> None:
    """Writes the settings to `config.json` in their `model_dir`, which is made."""
    folder = Path(config.model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(config), indent=2) + "\n"
    atomic_write_bytes(folder / FILE, text.encode())


def load(model_dir: str) -> Config:
    """Returns the settings of the run in a folder.

    Raises:
        UserError: If there is none, or its file is not one that `save` wrote.
    """
    path = Path(model_dir) / FILE
    if not path.is_file():
        raise UserError(
            f"expected {path}, which training writes; there is none. Name the"
            " --model_dir of a training run."
        )
    try:
        values = json.loads(path.read_text())
        return from_json(values)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} must be the settings of a training run; it isn't: {error}"
        ) from error


def from_json(values: dict[str, Any]) -> Config:
    """Returns the settings that `dataclasses.asdict` and JSON made those values of."""
    parts = []
    for part in values["phases"]:
        curve = part["curve"]
        if curve is not None:
            curve = Curve(**{**curve, "drops": tuple(curve["drops"])})
        parts.append(Phase(**{**part, "curve": curve}))
    names = tuple(values["class_names"])
    return Config(**{**values, "class_names": names, "phases": tuple(parts)})


def resolve(
    recipe: Recipe,
    given: Mapping[str, Any],
    num_train_examples: int,
    class_names: tuple[str, ...],
) -> Config:
    """Returns the settings of a run: the recipe's, but for those given.

    Args:
        recipe: Where what is not given comes from.
        given: Fields of `Config`, and what `scaling.fit` takes; a value of None counts
            as not given.
        num_train_examples: Of the data set.
        class_names: Of the data set, in the order of the labels.

    Raises:
        UserError: If a setting is out of its range or contradicts another one.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    problems = setting_bounds.problems_of_given(chosen)
    if problems := problems + scaling.problems_of_given(recipe, chosen):
        raise UserError(" ".join(problems))
    values = {
        one.name: getattr(recipe, one.name)
        for one in dataclasses.fields(Config)
        if hasattr(recipe, one.name)
    }
    values.update(
        (name, value)
        for name, value in chosen.items()
        if name in Config.__dataclass_fields__
    )
    values.update(
        recipe=recipe.name,
        num_train_examples=num_train_examples,
        class_names=class_names,
        num_classes=len(class_names),
        phases=scaling.fit(
            recipe, chosen, values["global_batch_size"], num_train_examples
        ),
    )
    config = Config(**values)
    setting_bounds.check(config)
    return config


def check_ranks(config: Config, num_ranks: int) -> None:
    """Refuses a global batch that the ranks can't share evenly, or without sense.

    Raises:
        UserError: If they can't, with the nearest sizes that they can; if the batch is
            larger than the data set; or if a batch that is mixed is odd.
    """
    batch = config.global_batch_size
    if batch > config.num_train_examples:
        raise UserError(
            "--train_batch_size must be at most the number of training examples; got"
            f" train_batch_size={batch}, {config.num_train_examples} examples. Set it,"
            " or take the --recipe of a small data set, such as imagenette."
        )
    parts = num_ranks * config.accumulation_steps
    if batch % parts:
        below = batch - batch % parts
        sizes = f"{below} or {below + parts}" if below else f"{parts}"
        steps = config.accumulation_steps
        times = f" times --accumulation_steps={steps}" if steps > 1 else ""
        raise UserError(
            f"--train_batch_size must be a multiple of the number of ranks{times}; got"
            f" train_batch_size={batch}, {num_ranks} ranks. Use {sizes}."
        )
    is_mixed = any(phase.mixup or phase.cutmix for phase in config.phases)
    if is_mixed and (batch // parts) % 2:
        raise UserError(
            "mixup and cutmix need an even number of examples on each rank at a time,"
            f" since they mix pairs; got {batch // parts}. Change --train_batch_size or"
            " --accumulation_steps."
        )


def differences(old: Config, new: Config) -> list[str]:
    """Returns what decides the result and differs, as `name=old, now new`."""
    before, after = _deciding(old), _deciding(new)
    return [
        f"{name}={_short(before.get(name))}, now {_short(after.get(name))}"
        for name in {**before, **after}
        if _decisive(name, before.get(name)) != _decisive(name, after.get(name))
    ]


def _decisive(name: str, value: Any) -> Any:
    """Returns what of a setting's value decides the result."""
    fields = {one.name: one for one in dataclasses.fields(Config)}
    metadata = fields[name].metadata if name in fields else {}
    return metadata.get("decides_by", lambda whole: whole)(value)


def refuse_other(old: Config, new: Config) -> None:
    """Refuses to go on with a run by other settings than its own.

    Raises:
        UserError: Naming what differs.
    """
    if different := differences(old, new):
        raise UserError(
            f"{new.model_dir} holds a run with other settings"
            f" ({'; '.join(different)}). Name another --model_dir, or the settings of"
            " that run."
        )


def _deciding(config: Config) -> dict[str, Any]:
    """Returns what decides the result, by name; that of phases behind the phase's."""
    found = {
        one.name: getattr(config, one.name)
        for one in dataclasses.fields(Config)
        if one.metadata.get("decides_the_result", True)
    }
    found["train_steps"] = config.train_steps
    found["phases"] = ", ".join(phase.name for phase in config.phases)
    for phase in config.phases:
        settings = dataclasses.asdict(phase)
        del settings["name"]
        settings.update(settings.pop("curve") or {})
        for name, value in settings.items():
            is_clear = len(config.phases) == 1 and name not in found
            found[name if is_clear else f"{phase.name}: {name}"] = value
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
