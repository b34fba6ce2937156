"""`checkpoint.json`: lists the files of a checkpoint, and shows if they are intact.

The file holds the size and SHA-256 of each of the checkpoint's files, the metadata of
the run at that step, and a SHA-256 of itself. Needs no TensorFlow.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from resnet.base import json_file
from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.errors import UserError
from resnet.checkpoint import step_dirs
from resnet.checkpoint.step_dirs import CONTENTS_FILE, NO_FILE

FORMAT = 1  # Raised for what older code would misread.
METADATA = "metadata"  # The key of the metadata in `checkpoint.json`.
STEP = "step"  # The key of the step in the metadata.
_BLOCK_BYTES = 1 << 20

Fingerprint = dict[str, Any]  # "bytes": size; "sha256": hexadecimal digest.


class CorruptCheckpoint(UserError):
    """A checkpoint that exists, but whose files are not as they were written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"the checkpoint {folder} can't be read: {reason}")
        self.folder = folder
        self.reason = reason


class OtherStep(CorruptCheckpoint):
    """A checkpoint whose folder was renamed or copied to the name of another step."""


def fingerprints(files: Iterable[Path]) -> dict[str, Fingerprint]:
    """Returns size and SHA-256 of files, by their names."""
    by_name = {}
    for file in sorted(files):
        digest = hashlib.sha256()
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK_BYTES):
                digest.update(block)
            by_name[file.name] = {"bytes": opened.tell(), "sha256": digest.hexdigest()}
    return by_name


def write_contents(
    folder: Path, metadata: Mapping[str, Any], files: Mapping[str, Fingerprint]
) -> None:
    """Writes `checkpoint.json`, with JSON values that describe the run at this step."""
    contents = {"format": FORMAT, "files": dict(files), METADATA: dict(metadata)}
    text = json.dumps({**contents, "sha256": _digest(contents)}, indent=1) + "\n"
    atomic_write_bytes(folder / CONTENTS_FILE, text.encode())


def drop_rank_files(folder: Path) -> None:
    """Removes the ranks' own state from a checkpoint, which stays intact without it.

    Raises CorruptCheckpoint if `checkpoint.json` is not as it was written, OSError if a
    file can't be removed, and UserError as `read_contents` does.
    """
    contents = read_contents(folder)
    files = contents["files"]
    kept = {name: files[name] for name in files if step_dirs.rank_of(name) is None}
    if len(kept) == len(files):
        return
    write_contents(folder, contents[METADATA], kept)  # First: a crash may follow.
    for name in files.keys() - kept.keys():
        (folder / name).unlink(missing_ok=True)


def read_contents(folder: Path) -> dict[str, Any]:
    """Returns what `checkpoint.json` holds.

    Its own digest is checked before the format: a flipped bit in `format` is damage,
    not another format. Raises CorruptCheckpoint if the file is missing or not as it was
    written, or the folder has the name of another step; and UserError if it has another
    format, or can't be read now.
    """
    try:
        text = (folder / CONTENTS_FILE).read_bytes()
    except OSError as error:
        raise _unread(folder, CONTENTS_FILE, error) from error
    try:
        what = "the list of a checkpoint's files"
        contents = json_file.parse(text, dict, CONTENTS_FILE, what)
        if contents.pop("sha256", None) != _digest(contents):
            raise UserError(f"{CONTENTS_FILE}: its own SHA-256 does not match")
    except UserError as error:
        raise CorruptCheckpoint(folder, str(error)) from error
    if contents["format"] != FORMAT:
        raise UserError(
            f"{folder} has the format {contents['format']}; this program reads format"
            f" {FORMAT}. Use the program that wrote it."
        )
    step = contents[METADATA].get(STEP)
    if step is not None and step_dirs.step_of(folder) not in (step, None):
        raise OtherStep(
            folder,
            f"it holds step {step}: the folder was renamed or copied. Rename it to"
            f" {step_dirs.of_step(Path(), step).name}, or remove it",
        )
    return contents


def read_metadata(folder: Path) -> dict[str, Any]:
    """Returns the metadata of a checkpoint; raises what `read_contents` does."""
    return dict(read_contents(folder)[METADATA])


def verify(
    folder: Path, is_wanted: Callable[[str], bool], checks_other_sizes: bool = True
) -> dict[str, Any]:
    """Reads each byte of a checkpoint's wanted files, and returns its metadata.

    Of the other files, it checks the sizes if asked for. Raises CorruptCheckpoint if a
    file is not as it was written, and UserError as `read_contents` does.
    """
    contents = read_contents(folder)
    for name, expected in contents["files"].items():
        try:
            if is_wanted(name):
                actual = fingerprints([folder / name])[name]
            elif checks_other_sizes:
                actual = {**expected, "bytes": (folder / name).stat().st_size}
            else:
                continue
        except OSError as error:
            raise _unread(folder, name, error) from error
        if actual != expected:
            raise CorruptCheckpoint(
                folder,
                f"{name} has {actual['bytes']} bytes and SHA-256"
                f" {actual['sha256'][:8]}...; it was written with {expected['bytes']}"
                f" bytes and {expected['sha256'][:8]}...",
            )
    return dict(contents[METADATA])


def unreadable_now(folder: Path, reason: str) -> UserError:
    """Returns the error for a checkpoint that may be intact, but can't be read."""
    return UserError(
        f"the checkpoint {folder} can't be read now: {reason}. Check its disk or file"
        " server and try again; to resume from the checkpoint before it, rename it."
    )


def _unread(folder: Path, name: str, error: OSError) -> UserError:
    """Returns the error for an unreadable file, a damage only if it doesn't exist."""
    reason = f"{name}: {os.strerror(error.errno or 0)}"
    if isinstance(error, NO_FILE):
        return CorruptCheckpoint(folder, reason)
    return unreadable_now(folder, reason)


def _digest(contents: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a JSON object, whatever the order of its names."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
