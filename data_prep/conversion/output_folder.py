"""The folder of a set while it is being made: whose it is, what it may hold.

RECORDS/.conversion holds the facts of the plan (`plan.json`) and a report of each
finished shard. A later run with the same facts goes on there.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from data_prep import atomic_files
from data_prep.conversion import shards
from data_prep.conversion.plan import Plan
from data_prep.errors import UserError
from data_prep.records import manifest, tfrecord_format
from data_prep.sources import folders

_PLAN_FILE = "plan.json"
# Features and checksums of an ImageNet record, its offset, its share of the report.
_RECORD_OVERHEAD_BYTES = 320


def check_not_finished(root: pathlib.Path) -> None:
    """Refuses a folder that holds a finished set.

    Raises:
        UserError: If it does.
    """
    if (root / manifest.FILE_NAME).exists():
        # A run that was killed at its very end left it.
        shutil.rmtree(root / tfrecord_format.CONVERSION_FOLDER, ignore_errors=True)
        raise UserError(
            f"{root} holds a finished set already ({manifest.FILE_NAME}); remove it or"
            " give another --local_scratch_dir"
        )


def check_apart(root: pathlib.Path, raw_data_dir: pathlib.Path) -> None:
    """Refuses a folder for the records among the images, as one of their classes.

    Raises:
        UserError: If it is in a folder of images, or is one.
    """
    for folder in folders.find(raw_data_dir):
        if root.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"the records must not lie among the images in {folder};"
                f" --local_scratch_dir={root} does. Give a folder elsewhere."
            )


def check_space(plan: Plan) -> None:
    """Compares what the set will take with what the disk has left.

    Raises:
        UserError: If the set doesn't fit.
    """
    needed = sum(
        split.images.num_bytes_estimate() + len(split.images) * _RECORD_OVERHEAD_BYTES
        for split in plan.splits
    ) - shards.num_bytes_kept(plan.root, plan.paths)
    folder = plan.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the records need about {in_units(needed)} in {plan.root}, and its disk"
            f" has {in_units(free)} free, {in_units(needed - free)} too little; make"
            " room or give another --local_scratch_dir"
        )


@contextlib.contextmanager
def locked(root: pathlib.Path) -> Iterator[None]:
    """Makes the folder of a set if need be, and keeps other conversions out of it.

    The lock ends with this process, however it ends.

    Raises:
        UserError: If another conversion is writing there.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another conversion is writing to {root}; wait for its end or give"
                " another --local_scratch_dir"
            ) from error
        except OSError:
            pass  # Some network file systems know no such locks.
        yield
    finally:
        os.close(descriptor)


def begin(plan: Plan) -> None:
    """Makes the set's folders ready, or finds that an earlier run did.

    Raises:
        UserError: If the folders hold files of something else, or if an earlier run
            with other settings isn't finished there.
    """
    folder = plan.root / tfrecord_format.CONVERSION_FOLDER
    facts = json.loads(json.dumps(plan.facts()))
    earlier_facts = _read_facts(folder / _PLAN_FILE)
    if earlier_facts is not None:
        _check_same(facts, earlier_facts, plan.root)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # Of which plan, nobody knows.
    remove_leftovers(plan)
    _check_no_strangers(plan)
    for split in plan.splits:
        (plan.root / split.name).mkdir(exist_ok=True)
    if earlier_facts is None:
        folder.mkdir()
        data = json.dumps(facts, indent=1) + "\n"
        atomic_files.atomic_write_bytes(folder / _PLAN_FILE, data.encode())


def remove_leftovers(plan: Plan) -> None:
    """Removes what killed writers left half written."""
    state_folder = plan.root / tfrecord_format.CONVERSION_FOLDER
    split_folders = [plan.root / split.name for split in plan.splits]
    for folder in [plan.root, state_folder, *split_folders]:
        atomic_files.remove_leftovers(folder)


def _read_facts(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise UserError(
            f"{path} says what an unfinished conversion was made of, and can't be read;"
            f" remove {path.parent} to convert everything again"
        )
    return facts


def _check_same(
    facts: dict[str, Any], earlier_facts: dict[str, Any], root: pathlib.Path
) -> None:
    differences = [
        f"{name} is {_shown(facts, name)} and was {_shown(earlier_facts, name)}"
        for name in dict.fromkeys((*facts, *earlier_facts))
        if facts.get(name) != earlier_facts.get(name)
    ]
    if differences:
        raise UserError(
            f"{root} holds an unfinished conversion of something else:"
            f" {', '.join(differences)}. Start with its settings to go on with it,"
            " remove it, or give another --local_scratch_dir."
        )


def _shown(facts: dict[str, Any], name: str) -> str:
    return f"{facts[name]!r:.80}" if name in facts else "not given"


def _check_no_strangers(plan: Plan) -> None:
    # Shards of another conversion would mix with ours for whoever reads `train-*`.
    ours = {plan.root / path for path in plan.paths}
    for split in plan.splits:
        folder = plan.root / split.name
        strangers = sorted(set(folder.iterdir()) - ours) if folder.exists() else []
        if strangers:
            raise UserError(
                f"{folder} must hold nothing but files of this conversion; it holds"
                f" {strangers[0].name!r}. Empty it or give another"
                " --local_scratch_dir"
            )


def in_units(num_bytes: int) -> str:
    """Returns a size for people, `138.2 GB`."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
