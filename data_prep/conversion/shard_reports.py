"""Shard reports: one JSON file per finished shard of an unfinished conversion.

The report is written to RECORDS/.conversion after the shard has its final name. A
resumed conversion keeps the shards that agree with their reports, if the images that
they were made from have not changed.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from data_prep.records import manifest, schema
from resnet.base import atomic_files

_HASH_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """The content of one finished shard.

    Attributes:
        path: POSIX path of the record file relative to the root of the set.
        num_bytes: Size of the file in bytes.
        sha256: SHA-256 of the file in hexadecimal.
        offsets: Byte offset of each record.
        class_counts: Number of records by class index, without zeros.
        converted_counts: Number of re-encoded images by their original kind, such as
            "PNG".
        skipped_images: Images that were skipped.
        source_digest: `image_list.files_digest` of the images assigned to the shard.
    """

    path: str
    num_bytes: int
    sha256: str
    offsets: tuple[int, ...]
    class_counts: dict[int, int]
    converted_counts: dict[str, int]
    skipped_images: tuple[manifest.SkippedImage, ...]
    source_digest: str

    @property
    def num_records(self) -> int:
        """Number of records in the shard."""
        return len(self.offsets)

    @property
    def num_images(self) -> int:
        """Number of images assigned to the shard, including skipped ones."""
        return len(self.offsets) + len(self.skipped_images)


def report_path(root: str | os.PathLike[str], shard_path: str) -> pathlib.Path:
    """Returns the path of a shard's report; `root` is the folder of the set."""
    name = f"{pathlib.PurePosixPath(shard_path).name}.json"
    return pathlib.Path(root, schema.CONVERSION_FOLDER, name)


def write(root: str | os.PathLike[str], report: ShardReport) -> None:
    """Writes the report of a shard; must be called after the shard is written."""
    fields = dataclasses.asdict(report)
    # Pairs, since JSON would turn the keys of an object into strings.
    fields["class_counts"] = sorted(report.class_counts.items())
    sealed = {"report": fields, "sha256": _digest(fields)}
    atomic_files.atomic_write_bytes(
        report_path(root, report.path), json.dumps(sealed).encode()
    )


def read(root: str | os.PathLike[str], shard_path: str) -> ShardReport | None:
    """Returns the report of a shard, or None if it is missing or corrupt."""
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
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def matches_shard(root: str | os.PathLike[str], report: ShardReport) -> bool:
    """Returns whether the shard exists with the reported size and SHA-256."""
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
