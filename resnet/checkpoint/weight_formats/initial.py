"""The weights that a run begins with, from a file of any known format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from resnet.base.errors import UserError
from resnet.checkpoint import tensors
from resnet.checkpoint.weight_formats import files, matching, own, torchvision, tpu
from resnet.checkpoint.weight_formats.stored import (
    Shapes,
    Stored,
    WeightFile,
    of_arrays,
)
from resnet.config.config import Config
from resnet.config.recipe import PARTS

# Other formats don't have them.
_WITHOUT_PARTS = {name: getattr(Config, name) for name in PARTS}


@dataclass(frozen=True)
class _Format:
    """A format of files.

    Attributes:
        places: A function that returns the places of our variables by their paths.
        is_extra: Whether a file may have an array that is none of the weights.
        details: The settings that make our network equal to the one of the format.
    """

    places: Callable[[list[str]], dict[str, Stored]]
    is_extra: Callable[[str], bool]
    details: Mapping[str, object]


def load(path: Path, config: Config, shapes: Shapes) -> dict[str, np.ndarray]:
    """Returns the values of a network's variables by their paths, float32.

    Those of the classifier are left out, and a log line says so, if the file has other
    classes: another number of them, or in a file of ours other names.

    Args:
        path: One of our checkpoints, the folder of a run, a TensorFlow checkpoint of
            the TPU recipe, or a file with a suffix of `files.SUFFIXES`.
        config: The settings of the run that begins.
        shapes: The shapes of the network's variables by their paths.

    Raises:
        UserError: If the weights can't be read, or aren't those of the network.
    """
    if files.kind_of(path) == files.OURS:
        saved = tensors.load_from(path)
        arrays = {name: np.asarray(one) for name, one in saved.tensors.items()}
        file = of_arrays(arrays, saved.metadata.get("config"))
        # Earlier versions had no others.
        details = {"resnet_variant": "tpu", **_WITHOUT_PARTS}
        found = _Format(own.places_in_checkpoint, own.is_extra_in_checkpoint, details)
    else:
        file = files.open_file(path)
        found = _format_of(path, file, shapes)
    _require_details(path, {**found.details, **file.settings}, config)
    places = found.places(list(shapes))
    kept = list(shapes)
    if reason := _reason_for_new_classifier(file, config, shapes, places):
        logging.info(
            "%s: the classifier of %s is not used, but a new one for the %d classes of"
            " this run.",
            *(reason, path, config.num_classes),
        )
        kept = matching.without_classifier(shapes)
    matching.require_same(
        path,
        config.model,
        file,
        {path: shapes[path] for path in kept},
        places,
        found.is_extra,
    )
    values = {}
    for name in kept:
        place = places[name]
        values[name] = np.asarray(place.to_ours(file.read(place.name)), np.float32)
    return values


def _format_of(path: Path, file: WeightFile, shapes: Shapes) -> _Format:
    """Returns the format whose names a file has.

    Raises:
        UserError: If it is none of the known formats.
    """
    for module in (torchvision, tpu):
        if module.FIRST in file.shapes:
            details = {
                "resnet_variant": module.VARIANT,
                "batch_norm_epsilon": module.EPSILON,
                **_WITHOUT_PARTS,
            }
            return _Format(module.places, module.is_extra, details)
    if any(name in file.shapes for name in shapes):
        return _Format(own.places, own.is_extra, {})
    names = ", ".join(map(repr, list(file.shapes)[:3])) or "nothing"
    raise UserError(
        f"{path} must hold the weights of one of our networks, of a torchvision ResNet"
        f" ({torchvision.FIRST}, ...) or of the TPU recipe's ({tpu.FIRST}, ...); it"
        f" holds {names}"
    )


def _require_details(path: Path, details: Mapping[str, object], config: Config) -> None:
    """Refuses weights of a network that computes something else than that of the run.

    Args:
        path: The file of the weights.
        details: Settings of the network that the weights are for, among others.
        config: The settings of the run.

    Raises:
        UserError: Naming the setting and the value that the weights need.
    """
    if details.get("is_folded"):
        raise UserError(
            f"the weights in {path} can't be trained on: batch normalization is folded"
            " into the convolutions. Export them with --nofold_batch_norm."
        )
    needed = {
        "resnet_variant": f"--resnet_variant={details.get('resnet_variant')}",
        "batch_norm_epsilon": "a recipe with batch_norm_epsilon"
        f" {details.get('batch_norm_epsilon')}",
        **{name: f"--{name}={details.get(name)}" for name in PARTS},
    }
    for name, what in needed.items():
        if name in details and details[name] != getattr(config, name):
            raise UserError(
                f"the weights in {path} need {what}; got {getattr(config, name)}"
            )


def _reason_for_new_classifier(
    file: WeightFile, config: Config, shapes: Shapes, places: Mapping[str, Stored]
) -> str:
    """Returns why the classifier in a file isn't of use; empty if it is."""
    if matching.has_other_classes(file, shapes, places):
        return "another number of classes"
    names = file.settings.get("class_names")
    if names is not None and tuple(names) != config.class_names:
        return "other classes"
    return ""
