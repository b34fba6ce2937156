"""Which files of a record set are known to be those of its manifest: `.verified.json`.

A file is read once to verify it. While its inode, size and times are those of that
moment, it counts as the same file; a copy of it has others.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data_prep.records import manifest, tfrecord
from data_prep.records.manifest import RecordSet, Shard
from resnet.base import atomic_files, json_file, regular_file
from resnet.base.errors import UserError, naming_unreadable

FILE_NAME = ".verified.json"
CORRUPT_ADVICE = (
    "Restore the file or convert the data set again; a synchronous training can also"
    " replace the record, with --on_bad_record=skip."
)


def states_of(record_set: RecordSet, shards: Sequence[Shard]) -> dict[str, list[Any]]:
    """Returns what is the same, by path, while neither files nor manifest change."""
    states = {}
    for shard in shards:
        with naming_unreadable(path := record_set.records_dir / shard.path):
            status = os.stat(path)
        times = status.st_mtime_ns, status.st_ctime_ns
        states[shard.path] = [status.st_ino, status.st_size, *times, shard.sha256]
    return states


def verify(
    record_set: RecordSet, shards: Sequence[Shard], accepts_corrupt: bool = True
) -> None:
    """Raises UserError unless the files have the digests of the manifest.

    One with a corrupt record passes, if that is accepted: whoever reads that record
    names or skips it. So does any file of images in place, whose checksums are in the
    index. Raises RuntimeError if a file can't be read now.
    """
    if record_set.manifest.images_dir:
        return

    def verify_one(shard: Shard) -> None:
        path = record_set.records_dir / shard.path
        with naming_unreadable(path):
            digest = regular_file.sha256(path)
            if digest == shard.sha256:
                return
            fault = tfrecord.describe_fault(path)
        if fault and not accepts_corrupt:
            raise UserError(f"{fault}. {CORRUPT_ADVICE}")
        if not fault:
            raise UserError(
                f"{path} must be the file that {manifest.FILE_NAME} describes, with"
                f" SHA-256 {shard.sha256:.12}; it was changed, and has {digest:.12}."
                f" {manifest.remedy(record_set)}"
            )

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(verify_one, shards))


def read(record_set: RecordSet) -> dict[str, list[Any]]:
    """Returns the recorded states of verified files."""
    states = {}
    for folder in _folders(record_set):
        with contextlib.suppress(UserError):
            states.update(json_file.read(folder / FILE_NAME, dict, "states of files"))
    return states


def write(record_set: RecordSet, states: Mapping[str, Sequence[Any]]) -> None:
    """Records states beside the manifest, else in the cache; or nowhere."""
    data = json.dumps(states).encode()
    for folder in _folders(record_set):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_files.atomic_write_bytes(folder / FILE_NAME, data)
            return


def write_all(record_set: RecordSet) -> None:
    """Records the files of a set that has just been written, or read as a whole."""
    splits = record_set.manifest.splits.values()
    shards = [shard for split in splits for shard in split.shards]
    write(record_set, states_of(record_set, shards))


def _folders(record_set: RecordSet) -> tuple[pathlib.Path, pathlib.Path]:
    return record_set.index_dir, manifest.cache_folder(record_set.records_dir)
