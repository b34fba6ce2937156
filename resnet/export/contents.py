"""The description of an exported network, which its file holds as JSON.

It is an entry of the metadata of most formats, named `KEY`. Does not import TensorFlow.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging

from data_prep.records import manifest
from data_prep.records.manifest import Manifest
from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import files
from resnet.config.config import Config
from resnet.config.recipe import PARTS

FORMAT_VERSION = 1
KEY = files.DESCRIPTION
Probabilities = Callable[[Any], np.ndarray]
FILE = "contents.json"  # Its name where the format is a folder or a zip archive.


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The description of an exported network.

    Attributes:
        format_version: The version of this description.
        model: The name of the network.
        step: The number of steps that it was trained for.
        weights: "raw", or "ema" for the exponential moving average of the weights.
        precision: "float32", "bf16", or "int8" for weights of 8 bits.
        is_folded: Whether batch normalization is a part of the convolutions.
        image_size: The height and width of the images in pixels.
        crop: How an image is cropped, as `preprocessing.eval_image` takes it.
        crop_fraction: The side of the central crop as a fraction of the shorter side.
        channel_mean: The mean of each channel, on a scale of 0 to 1.
        channel_stddev: The standard deviation of each channel, on the same scale.
        batch_norm_epsilon: The constant that is added to the variance.
        resnet_variant: The program that has the same ResNet, "tpu" or "torchvision".
        activation: The activation, one of `names.ACTIVATIONS`.
        se_ratio: The ratio of squeeze-and-excitation; 0 for none.
        blur_pool: The strided layers that blur, one of `names.BLUR_POOLS`.
        class_names: The names of the classes in the order of the outputs.
        class_descriptions: A description of each class, or empty.
        image_format: The format of the images of the training set, "jpeg" or "png";
            empty if unknown.
        apply_exif_orientation: Whether that set was converted with
            --apply_exif_orientation.
        program: The name and version of the program that exported the network.
    """

    format_version: int = FORMAT_VERSION
    model: str
    step: int
    weights: str
    precision: str
    is_folded: bool
    image_size: int
    crop: str
    crop_fraction: float
    channel_mean: tuple[float, ...]
    channel_stddev: tuple[float, ...]
    batch_norm_epsilon: float
    class_names: tuple[str, ...]
    resnet_variant: str = "tpu"
    activation: str = "relu"
    se_ratio: float = 0.0
    blur_pool: str = "none"
    class_descriptions: tuple[str, ...] = ()
    image_format: str = ""
    apply_exif_orientation: bool = False
    program: str = ""

    def as_json(self) -> str:
        """Returns the description as a JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def of_run(
    config: Config, step: int, weights: str, precision: str, is_folded: bool
) -> Contents:
    """Returns the description of a network of a run, whose attributes these are."""
    known = training_set(config)
    same = ["model", "image_size", "channel_mean", "channel_stddev", "class_names"]
    same += ["batch_norm_epsilon", "resnet_variant", *PARTS]
    return Contents(
        step=step,
        weights=weights,
        precision=precision,
        is_folded=is_folded,
        crop=config.eval_crop,
        crop_fraction=config.eval_crop_fraction,
        class_descriptions=known.class_descriptions if known else (),
        image_format=known.image_format if known else "",
        apply_exif_orientation=known is not None and known.apply_exif_orientation,
        program=f"resnet-cpu {_version()}",
        **{name: getattr(config, name) for name in same},
    )


def training_set(config: Config) -> Manifest | None:
    """Returns the metadata of the set that the run was trained on, if it is there.

    Warns if it isn't there.
    """
    if not config.data_dir:
        return None
    with contextlib.suppress(UserError):
        record_set = manifest.find(config.data_dir)
        if record_set and record_set.manifest.class_names == config.class_names:
            return record_set.manifest
    logging.warning(
        "%s no longer has the record set that the network was trained on. Whether its"
        " images were rotated by EXIF or stored as JPEG is not known: they are neither"
        " rotated nor re-encoded as JPEG.",
        config.data_dir,
    )
    return None


def from_text(text: str | None, where: str) -> Contents:
    """Returns the description in a text that `as_json` made.

    Args:
        text: The text; None if there is none.
        where: The path of the exported network, for errors.

    Raises:
        UserError: If it is not such a text.
    """
    what = "a network that eval/export.py has written"
    if text is None:
        raise UserError(f"{where} must hold {what}; it has no description.")
    values = json_file.parse(text, dict, f"the description in {where}", what)
    version = values.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{where} must hold {what}; a later version of the program wrote it"
            f" (format {version}, here {FORMAT_VERSION}). Update resnet-cpu."
        )
    with json_file.naming(f"the description in {where}", what):
        return json_file.instance(Contents, values)


def _version() -> str:
    try:
        return importlib.metadata.version("resnet-cpu")
    except importlib.metadata.PackageNotFoundError:
        return "of a folder that is not installed"
