"""Networks, record sets, evaluation and prediction from Python: what `resnet` offers.

Numbers are those of eval/resnet_eval.py and eval/predict.py, in one process. Mistakes
raise `resnet.base.errors.UserError`, whose text is one sentence. TensorFlow is imported
when a network is made.
"""

import dataclasses
import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from resnet.base.errors import UserError
from resnet.checkpoint import step_dirs
from resnet.config import recipe_file
from resnet.config.config import load_config
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.models import names
from resnet.network import Network, Prediction, Records
from resnet.runtime import startup

__all__ = [
    "Network",
    "Prediction",
    "Records",
    "build",
    "load",
    "network_names",
    "open_records",
]


def network_names() -> tuple[str, ...]:
    """Returns the names of the networks that `build` makes."""
    return tuple(names.MODELS)


def open_records(data_dir: str | os.PathLike[str]) -> Records:
    """Returns the record set in a folder; indexes it first if another program wrote it.

    Args:
        data_dir: The folder of a converted data set, or of one that TensorFlow Datasets
            or the TPU scripts wrote; with a split "validation".

    Raises:
        UserError: If the folder holds no such set.
    """
    process = ProcessInfo()
    alone = Communicator(process)
    return Records(
        record_sets.open_record_set(str(data_dir), "validation", process, alone)
    )


def load(
    path: str | os.PathLike[str], step: int | None = None, weights: str | None = None
) -> Network:
    """Returns the network of a run, with the weights of one of its checkpoints.

    Args:
        path: The folder of the run (--model_dir), or of one of its checkpoints.
        step: The step of the checkpoint in a run's folder, None for the newest; only
            with the folder of a run.
        weights: "raw", or "ema" for the exponential moving average of the weights; None
            for "ema" if the run has it.

    Raises:
        UserError: If there is no such run, checkpoint or weights.
    """
    folder = Path(path)
    if step_dirs.is_checkpoint(folder) and step_dirs.step_of(folder) is not None:
        if step is not None:
            raise UserError(
                f"step is for the folder of a run, but {path} is one checkpoint; got"
                f" step={step}. Leave it out."
            )
        step, folder = step_dirs.step_of(folder), folder.absolute().parents[1]
    config = load_config(str(folder))
    if weights not in (None, "raw", "ema"):
        raise UserError(f"weights must be raw or ema; got {weights!r}.")
    if weights == "ema" and not config.ema_decay:
        raise UserError(f"the run in {folder} has no EMA weights. Leave weights out.")
    startup.import_tensorflow()
    from resnet.checkpoint import restore

    found = restore.load_network(config, folder, step, weights)
    return Network(
        found.model, config, found.step, f"{found.weights} of step {found.step}"
    )


def build(
    name: str,
    classes: int | Sequence[str] = 1000,
    weights: str | os.PathLike[str] | None = None,
    recipe: str = imagenet.TPU_90EP_24K.name,
    **settings: Any,
) -> Network:
    """Returns a network by name.

    Args:
        name: The name, one of `network_names()`.
        classes: The names of the classes, such as those of a `Records`, or how many.
        weights: What --initial_weights takes: a run's folder, a checkpoint, a file of
            weights such as torchvision's, or a TensorFlow checkpoint of the TPU recipe;
            None for random weights.
        recipe: The recipe whose settings of the network and of evaluation it has.
        settings: Settings that are to be other ones, by the names in `config.json`,
            such as resnet_variant="torchvision", image_size=128 or seed=1.

    Raises:
        UserError: If there is no such network, or the weights aren't its weights.
        TypeError: If there is no such setting.
    """
    if name not in names.MODELS:
        raise UserError(
            f"expected a network among {', '.join(names.MODELS)}; got {name!r}"
        )
    class_names = _class_names(classes)
    chosen = recipe_file.get(recipe)
    if chosen.model != name:
        settings.setdefault("image_size", names.MODELS[name].image_size)
    if weights is not None:
        settings["initial_weights"] = str(weights)
    config = resolve(
        chosen, {"model": name, **settings}, chosen.num_train_examples, class_names
    )
    startup.import_tensorflow()
    from resnet.checkpoint import restore
    from resnet.optim.train_state import build_model
    from resnet.runtime import precision

    if config.precision == "auto":
        measured = precision.choose("auto", Communicator(ProcessInfo()))
        config = dataclasses.replace(config, precision=measured)
    model = build_model(config)
    if weights is None:
        return Network(model, config, 0, "random", is_trained=False)
    is_whole = restore.assign_initial_weights(model, config)
    described = f"of {weights}{'' if is_whole else ' and a new classifier'}"
    return Network(model, config, 0, described, is_whole)


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of classes, which are numbers if only their count is known."""
    try:
        known: Iterable[object] = range(operator.index(classes))  # type: ignore[arg-type]
    except TypeError:  # It is no count.
        known = classes  # type: ignore[assignment]
    if not (found := tuple(map(str, known))):
        raise UserError(
            f"classes must be the names of the classes, or how many, at least 1; got"
            f" {classes!r}."
        )
    return found
