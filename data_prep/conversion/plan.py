"""The plan of a conversion: which images become which shards of which set."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from data_prep.conversion import image_encoding, shards
from data_prep.errors import UserError
from data_prep.records import manifest, tfrecord_format
from data_prep.sources.image_list import ImageList
from data_prep.sources.raw_data import RawData

MOST_SHARDS = {  # ImageNet's, as in the TPU scripts.
    tfrecord_format.TRAIN: 1024,
    tfrecord_format.VALIDATION: 128,
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user decides about the records.

    Attributes:
        num_shards: Record files of each split; 0 or missing = by its size.
        shuffle_seed: Of the order of the records.
        apply_exif_orientation: Whether images are turned as their EXIF data says.
        skip_bad_images: Whether images that can't be decoded are left out. Otherwise
            they are errors.
    """

    num_shards: dict[str, int]
    shuffle_seed: int = 0
    apply_exif_orientation: bool = False
    skip_bad_images: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class SplitPlan:
    """Which images of a split go into which shard.

    Attributes:
        name: `train` or `validation`.
        images: All of the split, in the order of the source.
        order: Index of the image of each record, `[num_images]`, int64.
        shares: Which records each shard gets.
    """

    name: str
    images: ImageList
    order: npt.NDArray[np.int64]
    shares: list[range]

    @property
    def paths(self) -> list[str]:
        """Posix path of each shard, relative to the set's root."""
        num_shards = len(self.shares)
        return [
            f"{self.name}/{tfrecord_format.shard_name(self.name, index, num_shards)}"
            for index in range(num_shards)
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """All that decides the bytes of a set, and where it goes.

    Attributes:
        root: Folder of the set.
        raw: Where the images come from.
        options: What the user decided.
        splits: In the order in which they are converted.
    """

    root: pathlib.Path
    raw: RawData
    options: Options
    splits: tuple[SplitPlan, ...]

    @property
    def num_images(self) -> int:
        """Number of images of all splits."""
        return sum(len(split.images) for split in self.splits)

    @property
    def paths(self) -> list[str]:
        """Posix path of each shard of all splits, relative to `root`."""
        return [path for split in self.splits for path in split.paths]

    def facts(self) -> dict[str, Any]:
        """Returns what two runs must agree in to work on the same set.

        Not the number of processes, nor whether bad images are left out: one that
        ended a run may be left out by the next, and `shards.check_shard` sees to the
        other case.
        """
        facts: dict[str, Any] = {
            **self.raw.description,
            "shuffle_seed": self.options.shuffle_seed,
            "apply_exif_orientation": self.options.apply_exif_orientation,
        }
        for split in self.splits:
            facts[f"{split.name}_images"] = len(split.images)
            facts[f"{split.name}_shards"] = len(split.shares)
        facts["num_classes"] = len(self.raw.class_names)
        facts["class_names_sha256"] = _digest(self.raw.class_names)
        for split in self.splits:
            facts[f"{split.name}_fingerprint"] = split.images.fingerprint()
        facts |= encoder()
        facts["format_version"] = manifest.FORMAT_VERSION
        return facts


def make_plan(root: pathlib.Path, raw: RawData, options: Options) -> Plan:
    """Returns the plan of a conversion; nothing is written.

    Raises:
        UserError: If there are more shards than images.
    """
    splits = []
    for name, images in raw.splits.items():
        num_shards = options.num_shards.get(name, 0) or shards.default_num_shards(
            len(images), MOST_SHARDS[name]
        )
        if num_shards > len(images):
            raise UserError(
                f"--{name}_shards must be at most the number of {name} images,"
                f" {len(images)}; got {num_shards}"
            )
        splits.append(
            SplitPlan(
                name=name,
                images=images,
                order=images.order(options.shuffle_seed, name),
                shares=shards.split_evenly(len(images), num_shards),
            )
        )
    return Plan(root, raw, options, tuple(splits))


def shard_jobs(plan: Plan, finished: Collection[str]) -> Iterator[shards.ShardJob]:
    """Yields what is to be written, one shard after the other.

    Args:
        plan: Of the conversion.
        finished: Paths of the shards that are not to be written.
    """
    for split in plan.splits:
        for path, share in zip(split.paths, split.shares, strict=True):
            if path not in finished:
                indices = split.order[share.start : share.stop]
                yield shards.ShardJob(
                    root=str(plan.root),
                    path=path,
                    images=[split.images[index] for index in indices.tolist()],
                    class_indices=split.images.class_indices[indices].tolist(),
                    apply_exif_orientation=plan.options.apply_exif_orientation,
                    skip_bad_images=plan.options.skip_bad_images,
                )


def encoder() -> dict[str, Any]:
    """Returns what made the converted images' bytes."""
    return {
        "jpeg_quality": image_encoding.JPEG_QUALITY,
        "jpeg_subsampling": image_encoding.JPEG_SUBSAMPLING,
        "pillow_version": PIL.__version__,
    }


def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()
