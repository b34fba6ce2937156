"""The folder of each saved step: names in it, listing, and atomic replacement.

A checkpoint is `model_dir/checkpoints/step-00004680/`. Until it is complete it has a
hidden name, which one rename replaces. In it, `state.*` are rank 0's files; rank 3 of 8
writes state of its own as `rank-00003-of-00008.*`. Needs no TensorFlow.
"""

import os
import re
import shutil
from pathlib import Path

from resnet.base.atomic_files import sync_folder
from resnet.base.errors import UserError

FOLDER = "checkpoints"
CONTENTS_FILE = "checkpoint.json"
STATE = "state"  # Begins the names of the files with what all ranks have in common.
NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_STEP_FOLDER = re.compile(r"step-(\d{8,})")
_RANK_FILE = re.compile(r"rank-(\d{5,})-of-\d{5,}\.(index|data-.*)")
_REPLACED = ".replaced"  # Ends the name of a checkpoint while another takes its place.


def of_step(model_dir: Path, step: int) -> Path:
    """Returns the folder of a step's checkpoint."""
    return model_dir / FOLDER / f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """Returns the step in a folder's name; None for other names."""
    match = _STEP_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


def rank_prefix(rank: int, num_ranks: int) -> str:
    """Returns the first part of the names of the files with a rank's own state."""
    return f"rank-{rank:05d}-of-{num_ranks:05d}"


def rank_of(name: str) -> int | None:
    """Returns the rank whose own state is in a file; None for other files."""
    match = _RANK_FILE.fullmatch(name)
    return int(match[1]) if match else None


def unfinished(folder: Path) -> Path:
    """Returns the name that a checkpoint's folder has until it is complete."""
    return folder.with_name(f".{folder.name}.unfinished")


def version(folder: Path) -> tuple[int, int] | None:
    """Returns a folder's inode and modification time in ns; None if there is none."""
    try:
        status = folder.stat()
    except NO_FILE:
        return None
    return status.st_ino, status.st_mtime_ns


def is_checkpoint(folder: Path) -> bool:
    """Returns whether a folder, of whatever name, is itself a checkpoint."""
    return os.path.isfile(folder / CONTENTS_FILE)


def saved_steps(model_dir: Path) -> list[int]:
    """Returns the steps that have a checkpoint, the oldest first; or UserError."""
    folder = model_dir / FOLDER
    try:
        names = os.listdir(folder)
    except NO_FILE:
        return []
    except OSError as error:
        raise UserError(
            f"the folder {folder} can't be read now: {os.strerror(error.errno or 0)}."
            " Check its disk or file server and try again."
        ) from error
    matches = (_STEP_FOLDER.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def put_in_place(unfinished: Path, folder: Path) -> None:
    """Gives a complete checkpoint its final name, replacing one of the same step."""
    replaced = folder.with_name(f".{folder.name}{_REPLACED}")
    if folder.exists():  # Saved before its evaluation, or before a resume.
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    unfinished.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove(folder: Path) -> None:
    """Removes a checkpoint; renames it first, so that no reader sees half of it."""
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def quarantine(folder: Path) -> Path:
    """Renames a corrupt checkpoint to `damaged-step-...`, and returns the new path."""
    quarantined = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(quarantined, ignore_errors=True)
    folder.rename(quarantined)
    return quarantined


def remove_leftovers(model_dir: Path) -> None:
    """Removes the folders that a run killed during a save left behind.

    A checkpoint that was about to be replaced gets its name back, if no other has it.
    """
    for replaced in (model_dir / FOLDER).glob(f".step-*{_REPLACED}"):
        folder = replaced.with_name(replaced.name[1:].removesuffix(_REPLACED))
        if not folder.exists():
            replaced.rename(folder)
    patterns = (".step-*.unfinished", ".step-*.removed", f".step-*{_REPLACED}")
    for pattern in patterns:
        for leftover in (model_dir / FOLDER).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)
