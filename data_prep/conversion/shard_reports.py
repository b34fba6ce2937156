"""What is kept about each finished shard until the whole set is: one report a shard.

A report lies in RECORDS/.conversion and is written when its shard has its name. With
it, a conversion that was interrupted knows the shard for its own.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from data_prep import atomic_files
from data_prep.records import manifest, tfrecord_format

_HASH_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """One shard that was written.

    Attributes:
        path: Posix path of the record file, relative to the set's root.
        num_bytes: Size of the file.
        sha256: Of the file's content, in hexadecimal.
        offsets: Where each record begins in the file, in bytes.
        class_counts: Number of records by index of their class, without zeros.
        converted_counts: Number of images whose bytes are not those of their file, by
            what they were, such as "PNG".
        skipped_images: Images that were left out.
    """

    path: str
    num_bytes: int
    sha256: str
    offsets: tuple[int, ...]
    class_counts: dict[int, int]
    converted_counts: dict[str, int]
    skipped_images: tuple[manifest.SkippedImage, ...]

    @property
    def num_records(self) -> int:
        """Number of records in the shard."""
        return len(self.offsets)

    @property
    def num_images(self) -> int:
        """Number of images that were to be in the shard."""
        return len(self.offsets) + len(self.skipped_images)


def report_path(root: str | os.PathLike[str], shard_path: str) -> pathlib.Path:
    """Returns where the report of a shard of the set in `root` lies."""
    name = f"{pathlib.PurePosixPath(shard_path).name}.json"
    return pathlib.Path(root, tfrecord_format.CONVERSION_FOLDER, name)


def write(root: str | os.PathLike[str], report: ShardReport) -> None:
    """Writes the report of a shard; to be called when the shard has its name."""
    fields = dataclasses.asdict(report)
    fields["class_counts"] = sorted(report.class_counts.items())  # Keys stay numbers.
    sealed = {"report": fields, "sha256": _digest(fields)}
    atomic_files.atomic_write_bytes(
        report_path(root, report.path), json.dumps(sealed).encode()
    )


def read(root: str | os.PathLike[str], shard_path: str) -> ShardReport | None:
    """Returns the report of a shard; None if there is none or it is damaged."""
    try:
        sealed = json.loads(report_path(root, shard_path).read_bytes())
        fields = sealed["report"]
        if _digest(fields) != sealed["sha256"] or fields["path"] != shard_path:
            return None
        return ShardReport(
            **{
                **fields,
                "offsets": tuple(fields["offsets"]),
                "class_counts": dict(fields["class_counts"]),
                "skipped_images": tuple(
                    manifest.SkippedImage(**image) for image in fields["skipped_images"]
                ),
            }
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def agrees_with_its_shard(root: str | os.PathLike[str], report: ShardReport) -> bool:
    """Returns whether the shard is there with the size and the content reported."""
    digest = hashlib.sha256()
    try:
        with open(pathlib.Path(root, report.path), "rb") as file:
            if os.fstat(file.fileno()).st_size != report.num_bytes:
                return False
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == report.sha256


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
