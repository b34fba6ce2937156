"""The plan of a conversion: which images go into which shards, and the options."""

import dataclasses
import itertools
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from data_prep.conversion import depth_window
from data_prep.conversion.shards import ShardJob, json_digest
from data_prep.images import image_encoding
from data_prep.images.image_encoding import Encoding
from data_prep.records import labels, manifest
from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources.image_list import ImageList, Source
from resnet.base.errors import UserError
from resnet.base.names import require_lines
from resnet.base.settings import COUNT_OR_ZERO, FRACTION, setting

MIN_EXAMPLES_PER_SHARD = 256  # Smaller shards only add files.
# By default, as in the TPU scripts for ImageNet.
MAX_SHARDS = {TRAIN: 1024, VALIDATION: 128}


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
    validation_fraction: float = setting(
        0.0,
        "Fraction of the images of each class to hold out for validation, if the source"
        " has none for it; 0: none. Their content and --shuffle_seed decide which.",
        bounds=FRACTION,
    )
    fold: str | None = setting(
        None,
        "Fold K of N to hold out for validation, as K/N, instead of a fraction: each"
        " image is in one of the N folds, by its content or group and --shuffle_seed.",
        unset="none",
    )
    shuffle_seed: int = setting(
        0, "Random seed of the record order and of the images that are held out."
    )
    on_bad_image: str = setting(
        "fail",
        "Action on an image that can't be decoded: fail stops the conversion, skip"
        " omits the image and lists it in manifest.json. A read error always stops it.",
        names=("fail", "skip"),
    )
    in_place: bool = setting(
        False,
        "Write only an index of the images, from which training reads them where they"
        " are, instead of records.",
    )
    apply_exif_orientation: bool = setting(
        False,
        "Rotate and flip images by their EXIF orientation; the published recipes"
        " don't.",
    )
    depth_window: tuple[int, ...] = setting(
        (),
        "LOW,HIGH: the samples of 16-bit images that become 0 and 255, with a straight"
        " line between them; unset, the percentiles 0.1 and 99.9 of training images.",
        unset="percentiles",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class SplitPlan:
    """The assignment of one split's images to shards."""

    name: str  # `train` or `validation`.
    images: ImageList  # In source order.
    order: npt.NDArray[np.int64]  # Index into `images` of each record, `[num_images]`.
    record_ranges: list[range]  # Of each shard.

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
    """Everything that determines the bytes of a record set, and its output folder."""

    root: pathlib.Path  # Output folder.
    source: Source
    options: Options
    splits: tuple[SplitPlan, ...]  # In the order in which they are converted.
    encoding: Encoding  # In PNG if no source image is lossily compressed, else JPEG.

    @property
    def num_images(self) -> int:
        """Number of images of all splits."""
        return sum(len(split.images) for split in self.splits)

    @property
    def paths(self) -> list[str]:
        """POSIX path of each shard of all splits, relative to `root`."""
        return [path for split in self.splits for path in split.paths]

    def encoder(self) -> dict[str, Any]:
        """Returns the settings and the version of the encoder of stored images."""
        settings: dict[str, Any] = {"image_format": "png"}
        if self.encoding.image_format == "jpeg":
            settings = {
                "jpeg_quality": image_encoding.JPEG_QUALITY,
                "jpeg_subsampling": image_encoding.JPEG_SUBSAMPLING,
            }
        return {**settings, "pillow_version": PIL.__version__}

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata that must be equal for a run to resume another one.

        `on_bad_image` isn't part of it: a run may skip an image that stopped the run
        before, and `shards.check_shard` handles the opposite case.
        """
        metadata: dict[str, Any] = {
            **self.source.description,
            "validation_fraction": self.options.validation_fraction,
            "fold": self.options.fold,
            "in_place": self.options.in_place,
            "shuffle_seed": self.options.shuffle_seed,
            "apply_exif_orientation": self.options.apply_exif_orientation,
            "depth_window": list(self.encoding.depth_window),
        }
        for split in self.splits:
            metadata[f"{split.name}_images"] = len(split.images)
            metadata[f"{split.name}_shards"] = len(split.record_ranges)
        metadata["num_classes"] = len(self.source.class_names)
        metadata["class_names_sha256"] = json_digest(self.source.class_names)
        for split in self.splits:
            metadata[f"{split.name}_fingerprint"] = split.images.fingerprint()
        metadata |= self.encoder()
        metadata["format_version"] = manifest.FORMAT_VERSION
        return metadata

    def shard_jobs(self, left_out: Collection[str] = ()) -> Iterator[ShardJob]:
        """Yields a job for each shard, except those with the paths `left_out`."""
        for split in self.splits:
            for path, records in zip(split.paths, split.record_ranges, strict=True):
                if path not in left_out:
                    indices = split.order[records.start : records.stop]
                    yield ShardJob(
                        root=str(self.root),
                        path=path,
                        images=[split.images[index] for index in indices.tolist()],
                        class_indices=labels.indices_of(split.images.labels[indices]),
                        class_names=self.source.class_names,
                        encoding=self.encoding,
                        skip_bad_images=self.options.on_bad_image == "skip",
                    )


def make_plan(
    root: pathlib.Path, source: Source, options: Options, num_processes: int = 1
) -> Plan:
    """Returns the plan of a conversion; writes nothing.

    Reads the first bytes of the images, up to the first lossily compressed one, and
    some images of 16 bits (`depth_window.choose`).
    """
    require_lines(source.class_names)
    splits = []
    for name, images in source.splits.items():
        order = images.order(options.shuffle_seed, name)
        stated = options.train_shards if name == TRAIN else options.validation_shards
        if name == TRAIN and options.train_images:
            if options.train_images > len(images):
                raise UserError(
                    f"--train_images must be at most {len(images)}, the number of"
                    f" training images; got {options.train_images}"
                )
            # A part of the images is in the order in which it is among all of them.
            images = images.subset(np.sort(order[: options.train_images]))
            order = images.order(options.shuffle_seed, name)
        num_shards = stated or default_num_shards(len(images), MAX_SHARDS[name])
        if num_shards > len(images):
            raise UserError(
                f"--{name}_shards must be at most {len(images)}, the number of {name}"
                f" images; got {num_shards}"
            )
        ranges = split_evenly(len(images), num_shards)
        splits.append(SplitPlan(name, images, order, ranges))
    is_lossy = any(split.images.has_lossy_image() for split in splits)
    encoding = Encoding(
        "jpeg" if is_lossy else "png",
        options.apply_exif_orientation,
        _depth_window(splits[0], options, num_processes),
    )
    return Plan(root, source, options, tuple(splits), encoding)


def _depth_window(
    split: SplitPlan, options: Options, num_processes: int
) -> tuple[int, ...]:
    """Returns the window of a set, of which `split` is the training images, if any."""
    stated = options.depth_window
    if stated and (options.in_place or not manifest.is_window(stated)):
        raise UserError(
            "--depth_window must be two samples of 16 bits, LOW,HIGH with 0 <= LOW <"
            f" HIGH < 65536, without --in_place; got {','.join(map(str, stated))}"
        )
    if stated or options.in_place:
        return stated
    can_skip = options.on_bad_image == "skip"
    window = depth_window.choose(split.images, split.order, can_skip, num_processes)
    if window and split.name != TRAIN:
        raise UserError(
            "images of 16 bits without training images need --depth_window=LOW,HIGH:"
            f" the depth_window in the {manifest.FILE_NAME} of the training set"
        )
    return window


def default_num_shards(num_examples: int, max_shards: int) -> int:
    """Returns the number of shards of a split, at most `max_shards`."""
    return max(1, min(max_shards, num_examples // MIN_EXAMPLES_PER_SHARD))


def split_evenly(num_examples: int, num_shards: int) -> list[range]:
    """Returns the examples of each shard; the larger ones, by one, come first."""
    size, num_larger = divmod(num_examples, num_shards)
    starts = [index * size + min(index, num_larger) for index in range(num_shards + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]
