"""The plan of a conversion: which images go into which shards, and the options."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from data_prep.conversion.shards import ShardJob
from data_prep.records import image_encoding, manifest
from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources.image_list import ImageList, Source
from resnet.base.errors import UserError
from resnet.base.settings import COUNT_OR_ZERO, setting

MIN_EXAMPLES_PER_SHARD = 256  # Smaller shards only add files.
MAX_SHARDS = {  # By default, as in the TPU scripts for ImageNet.
    TRAIN: 1024,
    VALIDATION: 128,
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a conversion, as flags of the converter."""

    train_shards: int = setting(
        0,
        "Number of training shards (record files); 0: one per 256 images, at most"
        " 1,024.",
        bounds=COUNT_OR_ZERO,
    )
    validation_shards: int = setting(
        0,
        "Number of validation shards (record files); 0: one per 256 images, at most"
        " 128.",
        bounds=COUNT_OR_ZERO,
    )
    train_images: int = setting(
        0,
        "Number of training images to convert, those that come first in the record"
        " order; 0: all.",
        bounds=COUNT_OR_ZERO,
    )
    shuffle_seed: int = setting(0, "Random seed of the record order.")
    on_bad_image: str = setting(
        "fail",
        "Action on an image that can't be decoded: fail stops the conversion, skip"
        " omits the image and lists it in manifest.json. A read error always stops it.",
        names=("fail", "skip"),
    )
    apply_exif_orientation: bool = setting(
        False,
        "Rotate and flip images by their EXIF orientation; the published recipes"
        " don't.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class SplitPlan:
    """The assignment of one split's images to shards.

    Attributes:
        name: `train` or `validation`.
        images: The images of the split, in source order.
        order: Index into `images` for each record, `[num_images]`, int64.
        record_ranges: Range of records of each shard.
    """

    name: str
    images: ImageList
    order: npt.NDArray[np.int64]
    record_ranges: list[range]

    @property
    def paths(self) -> list[str]:
        """POSIX path of each shard relative to the root of the set."""
        num_shards = len(self.record_ranges)
        return [
            f"{self.name}/{manifest.shard_name(self.name, index, num_shards)}"
            for index in range(num_shards)
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Everything that determines the bytes of a record set, and its output folder.

    Attributes:
        root: Output folder.
        source: Source images and their classes.
        options: Options set by the user.
        splits: Splits in the order in which they are converted.
        image_format: Format of all stored images: "png" if no source image is lossily
            compressed, else "jpeg".
    """

    root: pathlib.Path
    source: Source
    options: Options
    splits: tuple[SplitPlan, ...]
    image_format: str = "jpeg"

    @property
    def num_images(self) -> int:
        """Number of images of all splits."""
        return sum(len(split.images) for split in self.splits)

    @property
    def paths(self) -> list[str]:
        """POSIX path of each shard of all splits, relative to `root`."""
        return [path for split in self.splits for path in split.paths]

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata that must be equal for a run to resume another one.

        `on_bad_image` isn't part of it: a run may skip an image that stopped the run
        before, and `shards.check_shard` handles the opposite case.
        """
        metadata: dict[str, Any] = {
            **self.source.description,
            "shuffle_seed": self.options.shuffle_seed,
            "apply_exif_orientation": self.options.apply_exif_orientation,
        }
        for split in self.splits:
            metadata[f"{split.name}_images"] = len(split.images)
            metadata[f"{split.name}_shards"] = len(split.record_ranges)
        metadata["num_classes"] = len(self.source.class_names)
        metadata["class_names_sha256"] = _digest(self.source.class_names)
        for split in self.splits:
            metadata[f"{split.name}_fingerprint"] = split.images.fingerprint()
        metadata |= encoder(self.image_format)
        metadata["format_version"] = manifest.FORMAT_VERSION
        return metadata


def make_plan(root: pathlib.Path, source: Source, options: Options) -> Plan:
    """Returns the plan of a conversion; writes nothing.

    Reads the first bytes of the images, up to the first lossily compressed one.

    Raises:
        UserError: If a split has fewer images than shards, or the source fewer
            training images than asked for.
        OSError: If an image can't be read.
    """
    splits = []
    for name, images in source.splits.items():
        stated = options.validation_shards
        if name == TRAIN:
            stated = options.train_shards
            if options.train_images:
                images = _first_images(images, options)
        num_shards = stated or default_num_shards(len(images), MAX_SHARDS[name])
        if num_shards > len(images):
            raise UserError(
                f"--{name}_shards must be at most {len(images)}, the number of {name}"
                f" images; got {num_shards}"
            )
        splits.append(
            SplitPlan(
                name=name,
                images=images,
                order=images.order(options.shuffle_seed, name),
                record_ranges=split_evenly(len(images), num_shards),
            )
        )
    is_lossy = any(split.images.has_lossy_image() for split in splits)
    image_format = "jpeg" if is_lossy else "png"
    return Plan(root, source, options, tuple(splits), image_format)


def default_num_shards(num_examples: int, max_shards: int) -> int:
    """Returns the number of shards of a split, at most `max_shards`."""
    return max(1, min(max_shards, num_examples // MIN_EXAMPLES_PER_SHARD))


def split_evenly(num_examples: int, num_shards: int) -> list[range]:
    """Returns the contiguous range of examples of each shard, larger shards first.

    The sizes differ by at most one.
    """
    size, num_larger = divmod(num_examples, num_shards)
    starts = [index * size + min(index, num_larger) for index in range(num_shards + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def _first_images(images: ImageList, options: Options) -> ImageList:
    """Returns the training images that come first in the order of the records.

    The order of a part of the images is that in which they are among all of them.
    """
    if options.train_images > len(images):
        raise UserError(
            f"--train_images must be at most {len(images)}, the number of training"
            f" images; got {options.train_images}"
        )
    order = images.order(options.shuffle_seed, TRAIN)
    return images.subset(np.sort(order[: options.train_images]))


def shard_jobs(plan: Plan, left_out: Collection[str]) -> Iterator[ShardJob]:
    """Yields a job for each shard, except those whose paths are to be left out."""
    for split in plan.splits:
        for path, records in zip(split.paths, split.record_ranges, strict=True):
            if path not in left_out:
                indices = split.order[records.start : records.stop]
                yield ShardJob(
                    root=str(plan.root),
                    path=path,
                    images=[split.images[index] for index in indices.tolist()],
                    class_indices=split.images.class_indices[indices].tolist(),
                    apply_exif_orientation=plan.options.apply_exif_orientation,
                    skip_bad_images=plan.options.on_bad_image == "skip",
                    image_format=plan.image_format,
                )


def encoder(image_format: str) -> dict[str, Any]:
    """Returns the settings and the version of the encoder of stored images.

    Args:
        image_format: Format of the stored images, "jpeg" or "png".
    """
    if image_format == "png":
        return {"image_format": "png", "pillow_version": PIL.__version__}
    return {
        "jpeg_quality": image_encoding.JPEG_QUALITY,
        "jpeg_subsampling": image_encoding.JPEG_SUBSAMPLING,
        "pillow_version": PIL.__version__,
    }


def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()
