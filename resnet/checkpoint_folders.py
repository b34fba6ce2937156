"""Where checkpoints lie, and what stands beside their tensors. Needs no TensorFlow.

`model_dir/checkpoints/step-00004680/` has files of TensorFlow's format named `state`,
and `checkpoint.json`: the size and SHA-256 of each of them, facts about the run at that
step, and a SHA-256 of itself.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_prep.atomic_files import atomic_write_bytes, sync_folder
from data_prep.errors import UserError

FOLDER = "checkpoints"
CONTENTS_FILE = "checkpoint.json"
# What evaluating the weights, and their moving average, has found: facts of a step.
EVALUATIONS = ("eval", "eval_ema")
FORMAT = 1  # Of the folder; a change that older code would misread raises it.
_STEP_FOLDER = re.compile(r"step-(\d{8,})")
_BLOCK_BYTES = 1 << 20
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class DamagedCheckpoint(UserError):
    """A checkpoint that is there, but not as it was written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"the checkpoint {folder} can't be read: {reason}")
        self.folder = folder


def of_step(model_dir: Path, step: int) -> Path:
    """Returns the folder of a step's checkpoint."""
    return model_dir / FOLDER / f"step-{step:08d}"


def is_checkpoint(folder: Path) -> bool:
    """Returns whether a folder, of whatever name, is itself a checkpoint."""
    return os.path.isfile(folder / CONTENTS_FILE)


def saved_steps(model_dir: Path) -> list[int]:
    """Returns the steps that have a checkpoint, the oldest first.

    Raises:
        UserError: If their folder can't be read now.
    """
    folder = model_dir / FOLDER
    try:
        names = os.listdir(folder)
    except _NO_FILE:
        return []
    except OSError as error:
        raise UserError(
            f"the folder {folder} can't be read now: {os.strerror(error.errno or 0)}."
            " See to its disk or file server, and try again."
        ) from error
    matches = (_STEP_FOLDER.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def require_any(folder: Path) -> None:
    """Refuses a folder that is neither a checkpoint nor that of a run with some.

    Raises:
        UserError: If it is neither, or can't be read now.
    """
    if not is_checkpoint(folder) and not saved_steps(folder):
        raise UserError(f"expected a checkpoint in {folder}; there is none")


def best_top1(facts: Mapping[str, Any]) -> float | None:
    """Returns the highest top-1 among a checkpoint's facts; None if it has none."""
    found = [facts[name]["top1"] for name in EVALUATIONS if name in facts]
    return max(found, default=None)


def best_step(model_dir: Path) -> int | None:
    """Returns the saved step with the highest top-1, of equal ones the newest.

    None if no checkpoint that is there was evaluated.
    """
    found = [
        (top1, step)
        for step, facts in _facts_of_all(model_dir)
        if (top1 := best_top1(facts)) is not None
    ]
    return max(found)[1] if found else None


def ends_run(
    model_dir: Path, step: int, train_steps: int, stop_at_top1: float | None = None
) -> bool:
    """Returns whether a run ends with a step's checkpoint, which may be damaged.

    Args:
        model_dir: Folder of the run.
        step: One that has a checkpoint.
        train_steps: The run's last step.
        stop_at_top1: Top-1 that is enough, or 0 for none; None: what the run wanted
            when it saved the step.
    """
    if step >= train_steps:
        return True
    try:
        facts = read_contents(of_step(model_dir, step))["facts"]
    except DamagedCheckpoint:
        return False
    if stop_at_top1 is None:
        stop_at_top1 = facts.get("config", {}).get("stop_at_top1", 0.0)
    return 0 < stop_at_top1 <= (best_top1(facts) or 0.0)


def phase_ends(model_dir: Path) -> dict[int, str]:
    """Returns the saved steps that end a phase of the recipe, and its name."""
    return {
        step: facts["ends_phase"]
        for step, facts in _facts_of_all(model_dir)
        if facts.get("ends_phase")
    }


def _facts_of_all(model_dir: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields step and facts of each checkpoint, without looking at its tensors."""
    for step in saved_steps(model_dir):
        with contextlib.suppress(DamagedCheckpoint):
            yield step, read_contents(of_step(model_dir, step))["facts"]


def write_contents(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes `checkpoint.json` over the files that are in a folder."""
    files = {file.name: _fingerprint(file) for file in sorted(folder.iterdir())}
    contents = {"format": FORMAT, "files": files, "facts": dict(facts)}
    text = json.dumps({**contents, "sha256": _digest(contents)}, indent=1) + "\n"
    atomic_write_bytes(folder / CONTENTS_FILE, text.encode())


def read_contents(folder: Path) -> dict[str, Any]:
    """Returns what `checkpoint.json` holds.

    Its own digest is looked at first, in a later format as well: else a bit that fell
    over in `format` would be one.

    Raises:
        DamagedCheckpoint: If it isn't there or isn't whole.
        UserError: If it is of a later format, or can't be read now.
    """
    try:
        contents: dict[str, Any] = json.loads((folder / CONTENTS_FILE).read_bytes())
        written = contents["sha256"]
        del contents["sha256"]
        if written != _digest(contents):
            raise ValueError("its own SHA-256 is another")
        is_known = contents["format"] <= FORMAT
    except OSError as error:
        raise _unread(folder, CONTENTS_FILE, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(folder, f"{CONTENTS_FILE}: {error}") from error
    if not is_known:
        raise UserError(
            f"{folder} has the format {contents['format']}; this program knows those up"
            f" to {FORMAT}. Use the program that wrote it, or a later one."
        )
    return contents


def verify(folder: Path) -> dict[str, Any]:
    """Reads each byte of a checkpoint, and returns its facts.

    Raises:
        DamagedCheckpoint: If it is not as it was written.
        UserError: If it is of a later format, or can't be read now.
    """
    contents = read_contents(folder)
    for name, expected in contents["files"].items():
        try:
            seen = _fingerprint(folder / name)
        except OSError as error:
            raise _unread(folder, name, error) from error
        if seen != expected:
            raise DamagedCheckpoint(
                folder,
                f"{name} has {seen['bytes']} bytes and SHA-256 {seen['sha256'][:8]}...;"
                f" it was written with {expected['bytes']} and"
                f" {expected['sha256'][:8]}...",
            )
    return dict(contents["facts"])


def unreadable_now(folder: Path, reason: str) -> UserError:
    """Returns the error of a checkpoint of which nobody knows whether it is damaged."""
    return UserError(
        f"the checkpoint {folder} can't be read now: {reason}. See to its disk or file"
        " server, and try again; to go on from the one before it, rename it."
    )


def _unread(folder: Path, name: str, error: OSError) -> UserError:
    """Returns the error of a file that can't be read: damage only if it isn't there."""
    reason = f"{name}: {os.strerror(error.errno or 0)}"
    if isinstance(error, _NO_FILE):
        return DamagedCheckpoint(folder, reason)
    return unreadable_now(folder, reason)


def put_in_place(unfinished: Path, folder: Path) -> None:
    """Gives a whole checkpoint its name, in the place of one of the same step."""
    removed = _removed(folder)
    if folder.exists():  # Saved before, by a run that went on from an older one.
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
    unfinished.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(removed, ignore_errors=True)


def remove(folder: Path) -> None:
    """Removes a checkpoint: first its name, so that nobody takes half of it."""
    removed = _removed(folder)
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _removed(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.removed")


def set_aside(folder: Path) -> Path:
    """Takes a damaged checkpoint out of the list; returns where it is now.

    Raises:
        OSError: If it can't be renamed.
    """
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    return aside


def remove_leftovers(model_dir: Path) -> None:
    """Removes what a run that was killed while it saved has left."""
    for pattern in (".step-*.unfinished", ".step-*.removed"):
        for leftover in (model_dir / FOLDER).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _digest(contents: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a JSON object, whatever the order of its names."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _fingerprint(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
        return {"bytes": opened.tell(), "sha256": digest.hexdigest()}
