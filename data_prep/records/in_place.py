"""Images in place: the bytes of one, in an archive or a file of its own."""

import os
import pathlib
from typing import Any

import google_crc32c
import numpy.typing as npt

from data_prep.records.manifest import Split
from resnet.base import regular_file
from resnet.base.errors import UserError


def name_of(entry: Any) -> str:
    """Returns the file name of an entry of the index, in a folder; empty for a span."""
    return bytes(entry["name"]).decode("utf-8", "surrogateescape")


def path_of(shard: str, entry: Any) -> str:
    """Returns the path of the file that has the image; `shard` is that of its shard."""
    return os.path.join(shard, name_of(entry)) if entry["name"] else shard


def check_files(folder: pathlib.Path, split: Split, entries: npt.NDArray[Any]) -> None:
    """Raises UserError unless the files of some entries of the index are there.

    Their sizes are compared; only reading an image compares its checksum.
    """
    for entry in entries[entries["name"] != b""]:
        path = path_of(str(folder / split.shards[entry["shard"]].path), entry)
        try:
            num_bytes = os.stat(path).st_size
        except OSError as error:
            problem = f"can't be read ({error.strerror})"
        else:
            if num_bytes == entry["num_bytes"]:
                continue
            problem = f"has {num_bytes:,} bytes; expected {entry['num_bytes']:,}"
        raise UserError(
            f"{path} {problem}. Put the file back, or make an index of the files that"
            " there are now, in another folder, and start another run with that."
        )


def read(shard: str, entry: Any) -> bytes:
    """Returns an encoded image; raises ValueError unless it is that of the index."""
    with regular_file.open_regular(path_of(shard, entry)) as file:
        num_bytes = int(entry["num_bytes"])
        encoded = os.pread(file.fileno(), num_bytes, int(entry["offset"]))
    check(encoded, num_bytes, int(entry["crc32c"]))
    return encoded


def check(encoded: bytes, num_bytes: int, checksum: int) -> None:
    """Raises ValueError unless an image has this size and this checksum (CRC32C)."""
    if len(encoded) != num_bytes:
        raise ValueError("the file ends inside the image")
    if google_crc32c.value(encoded) != checksum:
        raise ValueError("the checksum of the image doesn't match that of the index")
