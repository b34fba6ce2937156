"""The weights that a run begins with, from a file of any known format.

They are compared with the network before any variable is assigned.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from resnet.base.errors import UserError
from resnet.base.text import first_of
from resnet.checkpoint import tensors
from resnet.checkpoint.weight_formats import files, torchvision, tpu
from resnet.checkpoint.weight_formats.files import Shapes, Stored, WeightFile
from resnet.config.config import Config
from resnet.config.recipe import PARTS

_CLASSIFIER = "classifier/"  # The beginning of the paths of its variables.
_OWN = "model/"  # The beginning of the names of the network's variables in checkpoints.
_NUM_NAMED = 3


class _Format(NamedTuple):
    """The places of our variables in a file, by their paths.

    A file may have extra arrays that are none of the weights. The settings make our
    network equal to the one of the format.
    """

    places: Mapping[str, Stored]
    is_extra: Callable[[str], bool]
    settings: Mapping[str, object]


def load(path: Path, config: Config, shapes: Shapes) -> dict[str, np.ndarray]:
    """Returns the values of a network's variables by their paths, float32.

    The path is one of our checkpoints, the folder of a run, a TensorFlow checkpoint of
    the TPU recipe, or a file with a suffix of `files.SUFFIXES`. The values of the
    classifier are left out, and a log line says so, if the file has other classes:
    another number of them, or in a file of ours other names. Raises UserError if the
    weights can't be read, or aren't those of the network.
    """
    if files.kind_of(path) == files.OURS:
        saved = tensors.load_from(path)
        own = [name for name in saved.tensors if name.startswith(_OWN)]
        arrays = {
            name.removeprefix(_OWN): np.asarray(saved.tensors[name]) for name in own
        }
        file = files.of_arrays(arrays, saved.metadata.get("config"))
    else:
        file = files.open_file(path)
    form = _format_of(path, file, shapes)
    _require_settings(path, {**form.settings, **file.settings}, config)
    if reason := _reason_for_new_classifier(file, config, shapes, form.places):
        logging.info(
            "%s: the classifier of %s is not used, but a new one for the %d classes of"
            " this run.",
            reason,
            path,
            config.num_classes,
        )
        others = [name for name in shapes if not name.startswith(_CLASSIFIER)]
        shapes = {name: shapes[name] for name in others}
    _require_equal_variables(path, config.model, file, shapes, form)
    values = {}
    for name in shapes:
        place = form.places[name]
        values[name] = np.asarray(place.to_ours(file.read(place.name)), np.float32)
    return values


def _format_of(path: Path, file: WeightFile, shapes: Shapes) -> _Format:
    for module in (torchvision, tpu):
        if module.FIRST in file.shapes:
            settings = {
                "resnet_variant": module.VARIANT,
                "batch_norm_epsilon": module.EPSILON,
                # Other programs don't have the parts.
                **{name: getattr(Config, name) for name in PARTS},
            }
            return _Format(module.places(list(shapes)), module.is_extra, settings)
    if any(name in file.shapes for name in shapes):
        places = {name: Stored(name) for name in shapes}
        return _Format(places, lambda name: False, {})
    names = ", ".join(map(repr, list(file.shapes)[:_NUM_NAMED])) or "nothing"
    raise UserError(
        f"{path} must hold the weights of one of our networks, of a torchvision ResNet"
        f" ({torchvision.FIRST}, ...) or of the TPU recipe's ({tpu.FIRST}, ...); it"
        f" holds {names}"
    )


def _require_settings(
    path: Path, settings: Mapping[str, object], config: Config
) -> None:
    """Refuses weights of a network that computes something else than the run's."""
    if settings.get("is_folded"):
        raise UserError(
            f"the weights in {path} can't be trained on: batch normalization is folded"
            " into the convolutions. Export them with --nofold_batch_norm."
        )
    names = ("model", "resnet_variant", "batch_norm_epsilon", *PARTS)
    wrong = [
        name
        for name in names
        if name in settings and settings[name] != getattr(config, name)
    ]
    if not wrong:
        return
    needed = {name: f"--{name}={settings[name]}" for name in wrong}
    if "batch_norm_epsilon" in needed:  # It has no flag.
        needed["batch_norm_epsilon"] = (
            f"a recipe with batch_norm_epsilon {settings['batch_norm_epsilon']}"
        )
    found = (f"{name} {getattr(config, name)}" for name in wrong)
    raise UserError(
        f"the weights in {path} need {' '.join(needed.values())}; got"
        f" {', '.join(found)}. Change these settings, or name other weights."
    )


def _reason_for_new_classifier(
    file: WeightFile, config: Config, shapes: Shapes, places: Mapping[str, Stored]
) -> str:
    """Returns why the classifier in a file isn't of use; empty if it is."""
    sizes = []  # The shapes of the classifier's variables in the file, and here.
    for path, place in places.items():
        if path.startswith(_CLASSIFIER):
            theirs = file.shapes.get(place.name)
            if theirs is not None and place.axes and len(theirs) == len(place.axes):
                theirs = tuple(theirs[axis] for axis in place.axes)
            sizes.append((theirs, shapes[path]))
    # The last axis is that of the classes.
    if all(theirs is None for theirs, _ in sizes) or all(
        theirs and theirs[:-1] == ours[:-1] and theirs[-1] != ours[-1]
        for theirs, ours in sizes
    ):
        return "another number of classes"
    names = file.settings.get("class_names")
    if names is not None and tuple(names) != config.class_names:
        return "other classes"
    return ""


def _require_equal_variables(
    path: Path, network: str, file: WeightFile, shapes: Shapes, form: _Format
) -> None:
    """Refuses a file that doesn't hold the weights of a network, all and no others."""
    places = {name: form.places[name] for name in shapes if name in form.places}
    known = {place.name for place in form.places.values()}
    needed = {
        place.name: place.from_ours(np.broadcast_to(0, shapes[name])).shape
        for name, place in places.items()
    }
    surplus = [name for name in file.shapes.keys() - known if not form.is_extra(name)]
    wrong = [
        f"{name!r} must have the shape {shape}, it has {file.shapes[name]}"
        for name, shape in needed.items()
        if file.shapes.get(name, shape) != shape
    ]
    problems = (
        _some("it lacks ", [name for name in needed if name not in file.shapes]),
        _some("its format has no ", [name for name in shapes if name not in places]),
        _some("it has too much: ", sorted(surplus)),
        first_of(wrong, _NUM_NAMED),
    )
    if text := "; ".join(filter(None, problems)):
        raise UserError(
            f"--initial_weights must be those of this {network}; {path}: {text}. Give"
            " their --model, or other weights."
        )


def _some(beginning: str, items: Sequence[str]) -> str:
    return beginning + first_of(map(repr, items), _NUM_NAMED) if items else ""
