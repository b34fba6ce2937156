"""The output folder of a conversion: its lock, its allowed content, its state.

RECORDS/.conversion contains the metadata of the plan (`plan.json`) and a report of each
finished shard. A later run with the same metadata resumes the conversion. Without a
plan, no record file in the folder belongs to a conversion, whatever its name.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from data_prep.conversion import convert
from data_prep.conversion.plan import Plan
from data_prep.conversion.shards import json_digest
from data_prep.records import layouts, manifest
from data_prep.sources import archives, folders
from data_prep.sources.image_list import files_digest
from resnet.base import atomic_files, json_file, text
from resnet.base.atomic_files import is_at
from resnet.base.errors import UserError

_PLAN_FILE = "plan.json"
# Not in the folder of the state, whose presence means an unfinished conversion.
_LOCK_FILE = ".conversion.lock"
# Records beside them would make it ambiguous which set the folder contains.
_FOREIGN_FILES = (
    *(archives.TRAIN_ARCHIVE, archives.VALIDATION_ARCHIVE),
    layouts.INFO_FILE,
)
# Other features, checksums, offset, entry in the shard report.
_RECORD_OVERHEAD_BYTES = 320


def finished_set(plan: Plan) -> manifest.Manifest | None:
    """Returns the manifest of the plan's set if it is finished, or None without any.

    Raises UserError if the folder has another finished set, or images have changed.
    """
    root = plan.root
    if not (root / manifest.FILE_NAME).exists():
        return None
    try:
        finished = manifest.read_file(root / manifest.FILE_NAME)
        # Killed just before it removed its state.
        shutil.rmtree(root / manifest.CONVERSION_FOLDER, ignore_errors=True)
        wanted = plan.metadata()
        if any(split.skipped_images for split in finished.splits.values()):
            wanted["on_bad_image"] = plan.options.on_bad_image
        of_same_names = {name: finished.source.get(name) for name in wanted}
        if not (differences := _differences(wanted, of_same_names)):
            states = [files_digest(job.images) for job in plan.shard_jobs()]
            if finished.source.get(convert.FILES_DIGEST) == json_digest(states):
                folder = pathlib.Path(finished.images_dir or root)
                for name in finished.splits:
                    record_set = manifest.RecordSet(finished, folder, root)
                    manifest.check_files(record_set, name)
                return finished
            differences = "the sizes or times of image files have changed since"
    except UserError as error:
        differences = str(error)
    raise UserError(
        f"{root} already contains a finished record set ({manifest.FILE_NAME}), not of"
        f" this conversion: {differences}; delete that folder or choose another"
        " --local_scratch_dir"
    )


def check_apart(
    root: pathlib.Path, raw_data_dir: pathlib.Path, validation_split: str | None
) -> None:
    """Raises UserError if the records would be listed as images or classes."""
    if root.resolve() == raw_data_dir.resolve():
        raise UserError(
            "the output folder must be another one than the source; both"
            f" --local_scratch_dir and --raw_data_dir are {root}. Choose another"
            f" output folder, such as {root}-records."
        )
    if not folders.hold_images(raw_data_dir, validation_split):
        return
    for folder in folders.find(raw_data_dir, validation_split):
        if root.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"the output folder must be outside of the source folder {folder}; got"
                f" --local_scratch_dir={root}. Choose another folder."
            )


def check_space(plan: Plan) -> None:
    """Raises UserError if the images that aren't re-encoded exceed the disk's space."""
    if plan.options.in_place:
        return
    needed = plan.num_images * _RECORD_OVERHEAD_BYTES
    for split in plan.splits:
        needed += split.images.estimate_kept_bytes(plan.encoding.image_format)
    for path in convert.reported_shards(plan):
        with contextlib.suppress(OSError):  # A removed shard is written again.
            needed -= (plan.root / path).stat().st_size
    folder = plan.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the records need about {text.size(needed)} in {plan.root}, but its disk"
            f" has only {text.size(free)} free ({text.size(needed - free)} too little);"
            " free some space or choose another --local_scratch_dir"
        )


@contextlib.contextmanager
def locked(root: pathlib.Path) -> Iterator[None]:
    """Creates the output folder if necessary, and locks it; raises UserError if it is.

    The kernel releases the lock when this process ends, even if it is killed.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / _LOCK_FILE
    while not is_at(descriptor := _lock(path), path):
        os.close(descriptor)  # The previous holder has just removed the file.
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if is_at(descriptor, path):
                path.unlink()
        os.close(descriptor)


def _lock(path: pathlib.Path) -> int:
    """Returns the descriptor of a lock file, which is created and locked."""
    # NFS locks only what is open for writing, so never a folder.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(
            f"another conversion is writing to {path.parent}; wait for it to end or"
            " choose another --local_scratch_dir"
        ) from error
    except OSError:
        pass  # Some network file systems have no flock.
    return descriptor


def begin(plan: Plan) -> None:
    """Creates the set's folders, or checks that those of an earlier run fit the plan.

    Raises UserError if the folders contain other files, or an unfinished conversion of
    another source or with other options.
    """
    state = plan.root / manifest.CONVERSION_FOLDER
    metadata = plan.metadata()
    try:
        what = "the plan of an unfinished conversion"
        advice = f"Delete {state} to convert everything again."
        earlier = json_file.read(state / _PLAN_FILE, dict, what, advice)
    except json_file.MissingFile:
        earlier = None
    if earlier is not None and (differences := _differences(metadata, earlier)):
        raise UserError(
            f"{plan.root} contains an unfinished conversion of another source or with"
            f" other options: {differences}. Rerun it as before to resume, delete it,"
            " or choose another --local_scratch_dir."
        )
    _check_no_other_files(plan, is_resumed=earlier is not None)
    remove_leftovers(plan)
    for split in () if plan.options.in_place else plan.splits:
        (plan.root / split.name).mkdir(exist_ok=True)
    if earlier is None:
        state.mkdir(exist_ok=True)
        data = json.dumps(metadata, indent=1) + "\n"
        atomic_files.atomic_write_bytes(state / _PLAN_FILE, data.encode())


def remove_leftovers(plan: Plan) -> None:
    """Removes the partial files of killed writers."""
    split_folders = [split.name for split in plan.splits]
    for name in ("", manifest.CONVERSION_FOLDER, *split_folders):
        atomic_files.remove_leftovers(plan.root / name)


def _differences(metadata: dict[str, Any], earlier: dict[str, Any]) -> str:
    """Returns the first difference of a plan's metadata from earlier ones, or "".

    Further ones often follow from it: options come first, digests of images last.
    """
    metadata = json.loads(json.dumps(metadata))
    for name in dict.fromkeys((*metadata, *earlier)):
        if metadata.get(name) != earlier.get(name):
            return _difference(name, metadata.get(name), earlier.get(name))
    return ""


def _difference(name: str, now: Any, before: Any) -> str:
    """Returns a clause on two values of metadata, for images in words of the user."""

    def shown(value: Any) -> str:
        return "missing" if value is None else f"{value!r:.80}"

    split, _, kind = name.rpartition("_")
    if kind == "images" and isinstance(now, int) and isinstance(before, int):
        how = "more: files were added" if now > before else "fewer: files were removed"
        flag = ", or --train_images is another" if split == manifest.TRAIN else ""
        return f"there are {now:,} {split} images, {abs(now - before):,} {how}{flag}"
    if kind == "fingerprint" and before is not None:
        return f"the {split} images have other names, classes or places in archives"
    return f"{name} is {shown(now)}, was {shown(before)}"


def _check_no_other_files(plan: Plan, is_resumed: bool) -> None:
    """Checks that the folder contains no records or state of anything else.

    Unless `is_resumed`, files with the names of the plan's shards are not of it.
    """
    root = plan.root
    # Programs that read `train-*` would also read shards of another conversion.
    others = {
        path for path in root.iterdir() if layouts.SHARD_NAME.fullmatch(path.name)
    }
    others |= {root / name for name in _FOREIGN_FILES}
    for folder in (root / name for name in manifest.SPLITS):
        others.update(folder.iterdir() if folder.exists() else ())
    if is_resumed:
        others -= {root / path for path in plan.paths}
    else:
        state = root / manifest.CONVERSION_FOLDER
        others |= {root / manifest.index_path(name) for name in manifest.SPLITS}
        others.update(state.iterdir() if state.exists() else ())
    for path in sorted(others):
        if os.path.lexists(path) and not atomic_files.is_leftover(path):
            raise UserError(
                f"{path.parent} must contain only files of this conversion; it contains"
                f" {path.name!r}, which is not of it. Choose another"
                " --local_scratch_dir, or move what is not of it away."
            )
