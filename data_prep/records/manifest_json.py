"""The content of a manifest as dataclasses, and its JSON form."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections import Counter
from typing import Any, TypeVar

from data_prep.records import schema
from resnet.base.errors import UserError

FORMAT_VERSION = 2
_MAX_COUNT = 2**62  # Numbers of bytes and records, and labels, are int64 elsewhere.
IMAGE_FORMATS = ("jpeg", "png")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One record file.

    Attributes:
        path: POSIX path relative to the folder of the records.
        num_records: Number of records, at least 1.
        num_bytes: Size of the file in bytes.
        sha256: SHA-256 of the file in hexadecimal; None if unknown, in sets that other
            programs wrote.
        class_mixing: Chi-square per degree of freedom of the class counts, compared
            with those of the split; see `class_mixing.class_mixing`.
    """

    path: str
    num_records: int
    num_bytes: int
    sha256: str | None
    class_mixing: float


@dataclasses.dataclass(frozen=True)
class SkippedImage:
    """One image that a conversion skipped.

    Attributes:
        name: Path of the image, or path of its archive and name.
        reason: Message of the error.
    """

    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a record set.

    Attributes:
        name: `train` or `validation`.
        shards: Shards in the order in which their records are numbered.
        label_counts: Number of examples of each class, in label order.
        offsets_path: POSIX path of the offsets file relative to the index folder.
        offsets_sha256: SHA-256 of the offsets file in hexadecimal.
        skipped_images: Images that the conversion of the split skipped.
    """

    name: str
    shards: tuple[Shard, ...]
    label_counts: tuple[int, ...]
    offsets_path: str
    offsets_sha256: str
    skipped_images: tuple[SkippedImage, ...] = ()

    @property
    def num_examples(self) -> int:
        """Number of examples (records) in all shards."""
        return sum(shard.num_records for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The metadata of a record set.

    Attributes:
        class_names: Synsets or folder names, in label order.
        first_label: Label of the first class in the records.
        splits: Splits by name; `train` or `validation` can be missing.
        source: Origin and options of the conversion.
        class_descriptions: Description of each class ("tench, Tinca tinca"), or empty.
        image_key: Name of the feature with the encoded image.
        label_key: Name of the feature with the label.
        image_format: Format of all images, one of `IMAGE_FORMATS`.
        format_version: Version of the manifest's layout.
    """

    class_names: tuple[str, ...]
    first_label: int
    splits: dict[str, Split]
    source: dict[str, Any]
    class_descriptions: tuple[str, ...] = ()
    image_key: str = schema.ENCODED
    label_key: str = schema.LABEL
    image_format: str = "jpeg"
    format_version: int = FORMAT_VERSION

    @property
    def apply_exif_orientation(self) -> bool:
        """Whether images were rotated and flipped by their EXIF orientation."""
        return self.source.get("apply_exif_orientation") is True

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        fields = dataclasses.asdict(self)
        for split in fields["splits"].values():
            del split["name"]  # The key in the dictionary of splits.
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str | os.PathLike[str]) -> Manifest:
        """Returns the manifest that `to_json` wrote.

        Args:
            text: Text of the manifest file.
            path: Path of the manifest file, for messages.

        Raises:
            UserError: If the text is not a manifest, has another format version or is
                inconsistent.
        """
        try:
            return _parse(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} is not a readable manifest: {error}. The records may still be"
                " good: delete this file, and the next program that reads the set"
                " builds a new manifest from the records; or convert the images again."
            ) from error


def _parse(fields: Any) -> Manifest:
    """Returns the manifest of parsed JSON; raises ValueError if it is invalid."""
    whole = "the file"
    version = _get(fields, "format_version", int, whole)
    if version != FORMAT_VERSION:
        raise ValueError(f"format_version must be {FORMAT_VERSION}; it is {version}")
    class_names = _get_list(fields, "class_names", str, whole)
    if not class_names:
        raise ValueError("class_names is empty")
    _check_unique(class_names, "class_names")
    descriptions = _get_list(fields, "class_descriptions", str, whole)
    if descriptions and len(descriptions) != len(class_names):
        raise ValueError(
            f"class_descriptions describes {len(descriptions)} of the"
            f" {len(class_names)} classes"
        )
    image_format = _get(fields, "image_format", str, whole)
    if image_format not in IMAGE_FORMATS:
        raise ValueError(
            f"image_format must be {' or '.join(IMAGE_FORMATS)}; it is {image_format!r}"
        )
    splits = _get(fields, "splits", dict, whole)
    if not splits:
        raise ValueError("splits is empty")
    parsed = {
        name: _parse_split(split, name, len(class_names))
        for name, split in splits.items()
    }
    _check_unique(
        [shard.path for split in parsed.values() for shard in split.shards], "shards"
    )
    return Manifest(
        class_names=tuple(class_names),
        first_label=_get_count(fields, "first_label", whole, least=0),
        splits=parsed,
        source=_get(fields, "source", dict, whole),
        class_descriptions=tuple(descriptions),
        image_key=_get_name(fields, "image_key", whole),
        label_key=_get_name(fields, "label_key", whole),
        image_format=image_format,
        format_version=version,
    )


def _parse_split(fields: Any, name: str, num_classes: int) -> Split:
    where = f"split {name}"
    shards = tuple(
        _parse_shard(shard, f"shard {index} of {where}")
        for index, shard in enumerate(_get_list(fields, "shards", dict, where))
    )
    if not shards:
        raise ValueError(f"{where} has no shards")
    label_counts = tuple(_get_list(fields, "label_counts", int, where))
    skipped_images = tuple(
        SkippedImage(
            name=_get(image, "name", str, f"skipped image {index} of {where}"),
            reason=_get(image, "reason", str, f"skipped image {index} of {where}"),
        )
        for index, image in enumerate(_get_list(fields, "skipped_images", dict, where))
    )
    split = Split(
        name=name,
        shards=shards,
        label_counts=label_counts,
        offsets_path=_get_path(fields, "offsets_path", where),
        offsets_sha256=_get(fields, "offsets_sha256", str, where),
        skipped_images=skipped_images,
    )
    if len(label_counts) != num_classes:
        raise ValueError(
            f"{where} counts {len(label_counts)} labels; there are {num_classes}"
            " classes"
        )
    if min(label_counts) < 0 or sum(label_counts) != split.num_examples:
        raise ValueError(
            f"the label_counts of {where} add up to {sum(label_counts)} examples, its"
            f" shards to {split.num_examples}"
        )
    return split


def _parse_shard(fields: Any, where: str) -> Shard:
    mixing = _get(fields, "class_mixing", float, where)
    if not (math.isfinite(mixing) and mixing >= 0):
        raise ValueError(f"class_mixing of {where} must be at least 0; it is {mixing}")
    sha256 = fields.get("sha256")
    num_bytes = _get_count(fields, "num_bytes", where, least=1)
    return Shard(
        path=_get_path(fields, "path", where),
        num_records=_get_count(fields, "num_records", where, least=1, most=num_bytes),
        num_bytes=num_bytes,
        sha256=None
        if sha256 is None and "sha256" in fields
        else _get(fields, "sha256", str, where),
        class_mixing=mixing,
    )


def _get(fields: Any, key: str, kind: type[_T], where: str) -> _T:
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a JSON object")
    if key not in fields:
        raise ValueError(f"{where} has no {key}")
    value = fields[key]
    if not _is_a(value, kind):
        raise ValueError(
            f"{key} of {where} must be of type {kind.__name__}; it is {value!r:.50}"
        )
    return value  # type: ignore[no-any-return]


def _get_list(fields: Any, key: str, kind: type[_T], where: str) -> list[_T]:
    values: list[_T] = _get(fields, key, list, where)
    for value in values:
        if not _is_a(value, kind):
            raise ValueError(
                f"{key} of {where} must hold only values of type {kind.__name__};"
                f" one is {value!r:.50}"
            )
    return values


def _get_count(
    fields: Any, key: str, where: str, least: int, most: int = _MAX_COUNT
) -> int:
    value = _get(fields, key, int, where)
    if not least <= value <= most:
        raise ValueError(
            f"{key} of {where} must be from {least} to {most:,}; it is {value:,}"
        )
    return value


def _get_path(fields: Any, key: str, where: str) -> str:
    value = _get(fields, key, str, where)
    if not is_inside(value):
        raise ValueError(
            f"{key} of {where} must be a path inside the set; it is {value!r:.200}"
        )
    return value


def is_inside(value: str) -> bool:
    """Returns whether a text is a relative path that can't lead out of its folder."""
    path = pathlib.PurePosixPath(value)
    if not path.name or path.is_absolute() or ".." in path.parts or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return False
    return True


def _get_name(fields: Any, key: str, where: str) -> str:
    """Returns the name of a feature, which protobuf stores as UTF-8."""
    value = _get(fields, key, str, where)
    value.encode()  # Raises a ValueError for half of a surrogate pair.
    return value


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_unique(values: list[str], name: str) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{name} has {repeated[0]!r} more than once")
