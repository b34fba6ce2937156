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

from resnet.base.atomic_files import atomic_write_bytes
from resnet.base.errors import UserError
from resnet.checkpoint import step_dirs
from resnet.checkpoint.step_dirs import CONTENTS_FILE, NO_FILE

# Format of a checkpoint's folder. It is raised only for what older code would misread:
# older code would ignore the files of ranks.
FORMAT = 1
FORMAT_WITH_RANK_FILES = 2
METADATA = "facts"  # The key of the metadata in `checkpoint.json`.
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


def check_step(folder: Path, step: int) -> None:
    """Refuses a folder with the name of another step than that of its checkpoint.

    Raises:
        OtherStep: If the steps differ. A folder may have a name without a step.
    """
    if step_dirs.step_of(folder) not in (step, None):
        raise OtherStep(
            folder,
            f"it holds step {step}: the folder was renamed or copied. Rename it to"
            f" {step_dirs.of_step(Path(), step).name}, or remove it",
        )


def fingerprints(files: Iterable[Path]) -> dict[str, Fingerprint]:
    """Returns size and SHA-256 of files, by their names."""
    return {file.name: _fingerprint(file) for file in sorted(files)}


def write_contents(
    folder: Path,
    metadata: Mapping[str, Any],
    files: Mapping[str, Fingerprint] | None = None,
    has_rank_files: bool = False,
) -> None:
    """Writes `checkpoint.json`.

    Args:
        folder: Folder of the checkpoint.
        metadata: JSON values that describe the run at this step.
        files: Fingerprints of the checkpoint's files by name; None computes those of
            all files in the folder.
        has_rank_files: Whether some of the files hold the ranks' own state.
    """
    if files is None:
        files = fingerprints(folder.iterdir())
    version = FORMAT_WITH_RANK_FILES if has_rank_files else FORMAT
    contents = {"format": version, "files": dict(files), METADATA: dict(metadata)}
    text = json.dumps({**contents, "sha256": _digest(contents)}, indent=1) + "\n"
    atomic_write_bytes(folder / CONTENTS_FILE, text.encode())


def drop_files(folder: Path, is_dropped: Callable[[str], bool]) -> None:
    """Removes files from a checkpoint, which stays intact without them.

    Args:
        folder: Folder of the checkpoint.
        is_dropped: A function that returns whether to remove the file of a name, such
            as that of a rank's own state.

    Raises:
        CorruptCheckpoint: If `checkpoint.json` is not as it was written.
        OSError: If a file can't be removed.
        UserError: If `checkpoint.json` has a later format, or can't be read now.
    """
    contents = read_contents(folder)
    files = contents["files"]
    kept = {name: one for name, one in files.items() if not is_dropped(name)}
    if len(kept) == len(files):
        return
    write_contents(folder, contents[METADATA], kept)  # First: a crash may follow.
    for name in files.keys() - kept.keys():
        (folder / name).unlink(missing_ok=True)


def read_contents(folder: Path) -> dict[str, Any]:
    """Returns what `checkpoint.json` holds.

    Its own digest is checked before the format: a flipped bit in `format` is damage,
    not a later format.

    Raises:
        CorruptCheckpoint: If the file is missing or not as it was written, or the
            folder has the name of another step.
        UserError: If it has a later format, or can't be read now.
    """
    try:
        contents: dict[str, Any] = json.loads((folder / CONTENTS_FILE).read_bytes())
        written = contents["sha256"]
        del contents["sha256"]
        if written != _digest(contents):
            raise ValueError("its own SHA-256 does not match")
        is_known = contents["format"] <= FORMAT_WITH_RANK_FILES
    except OSError as error:
        raise _unread(folder, CONTENTS_FILE, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(folder, f"{CONTENTS_FILE}: {error}") from error
    if not is_known:
        raise UserError(
            f"{folder} has the format {contents['format']}; this program reads formats"
            f" up to {FORMAT_WITH_RANK_FILES}. Use the program that wrote it, or a"
            " later one."
        )
    if STEP in contents[METADATA]:
        check_step(folder, contents[METADATA][STEP])
    return contents


def read_metadata(folder: Path) -> dict[str, Any]:
    """Returns the metadata of a checkpoint, without reading its tensors.

    Raises:
        CorruptCheckpoint: If `checkpoint.json` is not as it was written.
        UserError: If it has a later format, or can't be read now.
    """
    return dict(read_contents(folder)[METADATA])


def verify(
    folder: Path,
    is_wanted: Callable[[str], bool] = lambda name: True,
    checks_other_sizes: bool = True,
) -> dict[str, Any]:
    """Reads each byte of a checkpoint, and returns its metadata.

    Args:
        folder: Folder of the checkpoint.
        is_wanted: A function that returns whether to read the file of a name.
        checks_other_sizes: Whether to check the sizes of the files that aren't wanted.

    Raises:
        CorruptCheckpoint: If a file is not as it was written.
        UserError: If the checkpoint has a later format, or can't be read now.
    """
    contents = read_contents(folder)
    for name, expected in contents["files"].items():
        try:
            if is_wanted(name):
                actual = _fingerprint(folder / name)
            elif not checks_other_sizes:
                continue
            else:
                num_bytes = (folder / name).stat().st_size
                actual = {"bytes": num_bytes, "sha256": expected["sha256"]}
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


def _fingerprint(file: Path) -> Fingerprint:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
        return {"bytes": opened.tell(), "sha256": digest.hexdigest()}
