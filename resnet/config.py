"""The settings of one run, made once and then only read."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.atomic_files import atomic_write_bytes
from data_prep.errors import UserError
from resnet import checkpoint_interval
from resnet.recipes import Recipe

FILE = "config.json"
MODELS = (
    "resnet9",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet200",
)
AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_shift",
    "pad_crop_flip_cutout",
    "none",
)
EVAL_CROPS = ("crop_then_resize", "resize_then_crop")
SHARD_BY = ("example", "file")
ON_BAD_RECORD = ("fail", "skip")
PRECISIONS = ("float32", "bf16", "auto")
MODES = ("train", "train_and_eval")
SMALLEST_IMAGE = 32  # The stages halve it five times.
LARGEST_IMAGE = 1024
BASE_BATCH_SIZE = 256  # What `base_learning_rate` is for.


def _free(default: Any) -> Any:
    return field(default=default, metadata={"decides_the_result": False})


@dataclass(frozen=True)
class Config:
    """Everything that a run follows; `model_dir/config.json` holds it.

    A later start in the same `model_dir` may change only the fields that don't decide
    the result; the size of a decoded cache, but not whether there is one. Learning
    rates are those of whole global batches; lengths are in steps, one step being one
    global batch.
    """

    recipe: str
    model: str
    num_classes: int
    class_names: tuple[str, ...]
    num_train_examples: int
    image_size: int
    augmentation: str
    eval_crop_fraction: float
    global_batch_size: int
    train_steps: int
    base_learning_rate: float
    peak_learning_rate: float
    warmup_steps: int
    momentum: float
    weight_decay: float
    batch_norm_decay: float
    label_smoothing: float
    eval_crop: str = "crop_then_resize"
    precision: str = "float32"
    seed: int = 0
    shard_by: str = "example"
    data_dir: str = _free("")
    model_dir: str = _free("")
    mode: str = _free("train_and_eval")
    eval_batch_size: int = _free(200)
    steps_per_eval: int = _free(0)
    log_step_count_steps: int = _free(10)
    checkpoint_every: str = _free("1 epoch")
    keep_checkpoints: int = _free(5)
    num_parallel_calls: int = _free(0)
    on_bad_record: str = _free("fail")
    record_log: str = _free("")
    decoded_cache_mb: int = field(default=0, metadata={"decides_by": bool})

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
        return Config(**{**values, "class_names": tuple(values["class_names"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} must be the settings of a training run; it isn't: {error}"
        ) from error


def resolve(
    recipe: Recipe,
    given: Mapping[str, Any],
    num_train_examples: int,
    class_names: tuple[str, ...],
) -> Config:
    """Returns the settings of a run: the recipe's, but for those given.

    What is not given and depends on the batch or the data set scales with them: the
    peak of the learning rate with the batch, the steps with the epochs of the recipe.
    A recipe's published number of steps holds for its own batch and data set.

    Args:
        recipe: Where what is not given comes from.
        given: Fields of `Config`, and `train_epochs` and `warmup_epochs`; a value of
            None counts as not given.
        num_train_examples: Of the data set.
        class_names: Of the data set, in the order of the labels.

    Raises:
        UserError: If a setting is out of its range or contradicts another one; it names
            every one that is.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    values = {**dataclasses.asdict(recipe), **chosen}
    values["num_train_examples"] = num_train_examples
    problems = _out_of_range(values)
    try:
        checkpoint_interval.parse(
            chosen.get("checkpoint_every", Config.checkpoint_every)
        )
    except UserError as error:
        problems.append(str(error))
    for steps, epochs in (
        ("train_steps", "train_epochs"),
        ("warmup_steps", "warmup_epochs"),
    ):
        if steps in chosen and epochs in chosen:
            problems.append(f"--{steps} and --{epochs} exclude each other; got both.")
    if problems:
        raise UserError(" ".join(problems))

    batch = values["global_batch_size"]
    if "train_steps" not in chosen:
        published = (
            batch == recipe.global_batch_size
            and num_train_examples == recipe.num_train_examples
            and "train_epochs" not in chosen
        )
        values["train_steps"] = (
            recipe.published_train_steps
            if published and recipe.published_train_steps
            else max(1, int(values["train_epochs"] * num_train_examples / batch))
        )
    if "warmup_steps" not in chosen:
        values["warmup_steps"] = int(
            values["warmup_epochs"] * num_train_examples / batch
        )
    if values["warmup_steps"] >= values["train_steps"]:
        raise UserError(
            "the warm-up must end before the training; got"
            f" warmup_steps={values['warmup_steps']},"
            f" train_steps={values['train_steps']}. Shorten it with --warmup_steps, or"
            " train longer."
        )
    if "peak_learning_rate" not in chosen:
        values["peak_learning_rate"] = (
            recipe.peak_share * values["base_learning_rate"] * batch / BASE_BATCH_SIZE
        )
    if "base_learning_rate" not in chosen:  # A warm-up does not fall.
        values["base_learning_rate"] = min(
            recipe.base_learning_rate, values["peak_learning_rate"]
        )
    values.update(
        recipe=recipe.name, class_names=class_names, num_classes=len(class_names)
    )
    names = {one.name for one in dataclasses.fields(Config)}
    return Config(**{name: value for name, value in values.items() if name in names})


_MOST = 2**31
# Lowest allowed, first no longer allowed.
_BOUNDS: dict[str, tuple[float, float]] = {
    "image_size": (SMALLEST_IMAGE, LARGEST_IMAGE + 1),
    "global_batch_size": (1, _MOST),
    "eval_batch_size": (1, _MOST),
    "train_steps": (1, _MOST),
    "train_epochs": (1e-9, 1e6),
    "warmup_steps": (0, _MOST),
    "warmup_epochs": (0, 1e6),
    "base_learning_rate": (0, math.inf),
    "peak_learning_rate": (1e-30, math.inf),
    "momentum": (0, 1),
    "weight_decay": (0, math.inf),
    "batch_norm_decay": (0, 1),
    "label_smoothing": (0, 1),
    "eval_crop_fraction": (1e-9, 1.000001),
    "seed": (0, 2**63),
    "steps_per_eval": (0, _MOST),
    "log_step_count_steps": (1, _MOST),
    "keep_checkpoints": (1, _MOST),
    "num_parallel_calls": (0, 4097),
    "decoded_cache_mb": (0, _MOST),
}
_NAMES: dict[str, tuple[str, ...]] = {
    "model": MODELS,
    "augmentation": AUGMENTATIONS,
    "precision": PRECISIONS,
    "mode": MODES,
    "eval_crop": EVAL_CROPS,
    "shard_by": SHARD_BY,
    "on_bad_record": ON_BAD_RECORD,
}
# Flags keep the names that the recipe's ancestor gave them.
_FLAG_NAMES = {
    "global_batch_size": "train_batch_size",
    "batch_norm_decay": "bn_momentum",
}


def _out_of_range(values: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each value that is not what its setting allows."""
    problems = []
    for name, (low, high) in _BOUNDS.items():
        value = values.get(name)
        if value is None or low <= value < high:  # False for NaN.
            continue
        limit = (
            f"at least {low:g}"
            if high in (math.inf, _MOST) and not value >= high
            else f"in [{low:g}, {high:g})"
        )
        flag = _FLAG_NAMES.get(name, name)
        problems.append(f"--{flag} must be {limit}; got {value}.")
    for name, allowed in _NAMES.items():
        value = values.get(name)
        if value is not None and value not in allowed:
            problems.append(
                f"--{name} must be one of {', '.join(allowed)}; got {value}."
            )
    return problems


def check_ranks(config: Config, num_ranks: int) -> None:
    """Refuses a global batch that the ranks can't share evenly, or without sense.

    Raises:
        UserError: If they can't, with the nearest sizes that they can; or if the batch
            is larger than the data set.
    """
    batch = config.global_batch_size
    if batch > config.num_train_examples:
        raise UserError(
            "--train_batch_size must be at most the number of training examples; got"
            f" train_batch_size={batch}, {config.num_train_examples} examples. Set it,"
            " or take the --recipe of a small data set, such as imagenette."
        )
    if batch % num_ranks:
        below = batch - batch % num_ranks
        sizes = f"{below} or {below + num_ranks}" if below else f"{num_ranks}"
        raise UserError(
            "--train_batch_size must be a multiple of the number of ranks; got"
            f" train_batch_size={batch}, {num_ranks} ranks. Use {sizes}."
        )


def differences(old: Config, new: Config) -> list[str]:
    """Returns what decides the result and differs, as `name=old, now new`."""
    different = []
    for one in dataclasses.fields(Config):
        before, now = getattr(old, one.name), getattr(new, one.name)
        decisive = one.metadata.get("decides_by", lambda value: value)
        if one.metadata.get("decides_the_result", True) and (
            decisive(before) != decisive(now)
        ):
            different.append(f"{one.name}={_short(before)}, now {_short(now)}")
    return different


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
