"""The description of an exported network, which its file holds as JSON.

It is an entry of the metadata of most formats, named `KEY`. Does not import TensorFlow.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging

from data_prep.images.image_encoding import Encoding
from data_prep.records import manifest
from data_prep.records.manifest import Manifest
from resnet.base import VERSION, json_file
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

    The settings of the run have their names. The weights are "raw" or "ema" and the
    precision is "float32", "bf16", or "int8" for weights of 8 bits. Means and standard
    deviations of the channels are on a scale of 0 to 1. The format of the training
    set's images is "jpeg" or "png", or empty if unknown.
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
    multi_label: bool = False
    resnet_variant: str = "tpu"
    activation: str = "relu"
    se_ratio: float = 0.0
    blur_pool: str = "none"
    class_descriptions: tuple[str, ...] = ()
    image_format: str = ""
    apply_exif_orientation: bool = False
    depth_window: tuple[int, ...] = ()  # Of the training set, or ().
    program: str = ""

    @property
    def encoding(self) -> Encoding:
        """How the training set stores images, as far as it is known."""
        is_turned, window = self.apply_exif_orientation, self.depth_window
        return Encoding(self.image_format, is_turned, window)

    def as_json(self) -> str:
        """Returns the description as a JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def of_run(
    config: Config,
    step: int = 0,
    weights: str = "raw",
    precision: str = "float32",
    is_folded: bool = True,
) -> Contents:
    """Returns the description of a network of a run, whose attributes these are."""
    known = training_set(config)
    same = ["model", "image_size", "channel_mean", "channel_stddev", "class_names"]
    same += ["batch_norm_epsilon", "resnet_variant", "depth_window", "multi_label"]
    same += PARTS
    of_set = ("class_descriptions", "image_format", "apply_exif_orientation")
    return Contents(
        step=step,
        weights=weights,
        precision=precision,
        is_folded=is_folded,
        crop=config.eval_crop,
        crop_fraction=config.eval_crop_fraction,
        program=f"resnet-cpu {VERSION}",
        **{name: getattr(known, name) for name in of_set if known},
        **{name: getattr(config, name) for name in same},
    )


def training_set(config: Config) -> Manifest | None:
    """Returns the metadata of the set that a run was trained on, or None and warns."""
    if not config.data_dir:
        return None
    with contextlib.suppress(UserError):
        known = manifest.load(config.data_dir, manifest.TRAIN).manifest
        digest = known.splits[manifest.TRAIN].records_sha256
        is_same = config.train_records_sha256 in ("", digest)
        if is_same and known.class_names == config.class_names:
            return known
    logging.warning(
        "%s no longer has the record set that the network was trained on. Whether its"
        " images were rotated by EXIF or stored as JPEG is not known: they are neither"
        " rotated nor re-encoded as JPEG.",
        config.data_dir,
    )
    return None


def from_text(text: str | None, where: str) -> Contents:
    """Returns the description in a text that `as_json` made; None is no text.

    Raises UserError, naming the path of the exported network, if it is not such a text.
    """
    what = "a network that eval/export.py has written"
    if text is None:
        raise UserError(f"{where} must hold {what}; it has no description.")
    source = f"the description in {where}"
    version = json_file.parse(text, dict, source, what).get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{where} must hold {what}; a later version of the program wrote it"
            f" (format {version}, here {FORMAT_VERSION}). Update resnet-cpu."
        )
    return json_file.parse(text, Contents, source, what)
