"""The manifest of a record set: its content, its JSON form, and its file on disk.

`manifest.json` is in the root of the set, beside the folders `train/` and
`validation/`. It is written last, so a set with a manifest is complete. For sets
written by other programs, `indexing` creates the manifest, possibly in a cache folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from data_prep.records.tf_example import RecordForm
from resnet.base import atomic_files, commands, json_file, regular_file
from resnet.base.errors import UserError, naming_failures
from resnet.base.text import first_of

FILE_NAME = "manifest.json"
SPLITS = TRAIN, VALIDATION = ("train", "validation")
NO_VALIDATION = (
    "no validation split, so accuracy on other images than those of the training can't"
    " be measured; convert into another folder with --validation_fraction=0.1 to hold"
    " out a tenth"
)
# State of an unfinished conversion, in the root of the set; removed at the end.
CONVERSION_FOLDER = ".conversion"
FORMAT_VERSION = 2
IMAGE_FORMATS = ("jpeg", "png")
# The number of examples per rank may differ between nodes by this fraction of its mean:
# the examples of a node with fewer examples are used more often.
MAX_IMBALANCE = 0.1

_IMAGENET_SIZE = 500_000  # Images. The recipes for ImageNet have batches of thousands.
OWN_RECIPE = "own"  # The recipe that follows from the set.
# The recipes for known sets, by their classes, with the least number of images that
# they are for: others may have the same classes.
_KNOWN_RECIPES = {
    tuple("0123456789"): ("digits", 1_000),
    (
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse"),
        *("ship", "truck"),
    ): ("cifar10", 25_000),
}

_MAX_COUNT = 2**62  # Numbers of bytes and records, and labels, are int64 elsewhere.
_WHAT = "the manifest of a record set"
_ADVICE = (
    "The records may still be good: delete this file, and the next program that reads"
    " the set builds a new manifest from the records; or convert the images again."
)
_VERSION_FOLDER = re.compile(r"\d+\.\d+\.\d+")  # Version folder of tensorflow_datasets.


@dataclasses.dataclass(frozen=True)
class Shard:
    """One record file; of images in place an archive, or a folder of image files."""

    path: str  # POSIX, relative to the folder of the records.
    num_records: int  # At least 1.
    num_bytes: int
    sha256: str  # In hexadecimal.
    # The statistic of `class_mixing.class_mixing`; 0 with several labels an image.
    class_mixing: float


@dataclasses.dataclass(frozen=True)
class SkippedImage:
    """An image that a conversion skipped: its path, or archive and name, and why."""

    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a record set."""

    name: str  # One of `SPLITS`.
    shards: tuple[Shard, ...]  # In the order in which their records are numbered.
    label_counts: tuple[int, ...]  # Number of examples with each label, in order.
    index_path: str  # POSIX path of the index file in the index folder.
    index_sha256: str
    skipped_images: tuple[SkippedImage, ...] = ()

    @property
    def num_examples(self) -> int:
        """Number of examples (records) in all shards."""
        return sum(shard.num_records for shard in self.shards)

    @property
    def records_sha256(self) -> str:
        """The SHA-256 of the shards' digests in order, wherever the shards are."""
        digests = "".join(shard.sha256 for shard in self.shards)
        return hashlib.sha256(digests.encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(RecordForm):
    """The metadata of a record set."""

    splits: dict[str, Split]  # By name; `train` or `validation` can be missing.
    source: dict[str, Any]  # Origin and options of the conversion, as JSON values.
    class_descriptions: tuple[str, ...] = ()  # "tench, Tinca tinca"; or empty.
    median_side: int = 0  # Of the images, in pixels (`image_sizes`); 0 if unknown.
    depth_window: tuple[int, ...] = ()  # Of samples of 16 bits; () if there are none.
    # Of images in place: the absolute path of the folder that the shards are in.
    images_dir: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def apply_exif_orientation(self) -> bool:
        """Whether images were rotated and flipped by their EXIF orientation."""
        return self.source.get("apply_exif_orientation") is True

    def example_image(self) -> str:
        """Returns the path of an image of the source if it is still there, or IMAGE.

        Beside class folders, no image counts.
        """
        root = str(self.source.get("raw_data_dir") or "")
        for folder, subfolders, files in os.walk(root):
            subfolders.sort(reverse=True)  # Those of validation before train.
            if subfolders:
                continue
            if images := sorted(fnmatch.filter(files, "[!.]*.[jJpP][pPnN]*[gG]")):
                path = os.path.join(folder, images[0])
                return min(path, os.path.relpath(path), key=len)
        return "IMAGE"

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        fields = dataclasses.asdict(self)
        for split in fields["splits"].values():
            del split["name"]  # The key in the dictionary of splits.
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def read_file(path: str | os.PathLike[str]) -> Manifest:
    """Returns the manifest in a file that `Manifest.to_json` wrote.

    Raises `json_file.MissingFile` if there is no file, and UserError if it can't be
    read, isn't a manifest, has another format version or is inconsistent.
    """
    fields = json_file.read(path, dict, _WHAT, _ADVICE)
    with json_file.naming(str(path), _WHAT, _ADVICE):
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(
                f"format_version must be {FORMAT_VERSION}; it is {version!r}"
            )
        splits = fields.get("splits")
        for name, split in splits.items() if isinstance(splits, dict) else ():
            if isinstance(split, dict):
                split["name"] = name
        manifest = json_file.instance(Manifest, fields)
        for problem in _inconsistencies(manifest):
            raise UserError(problem)
    return manifest


def _inconsistencies(manifest: Manifest) -> Iterator[str]:
    """Yields clauses about what is inconsistent."""
    num_classes = len(manifest.class_names)
    num_described = len(manifest.class_descriptions)
    splits = manifest.splits.values()
    if not manifest.class_names:
        yield "class_names is empty"
    if not splits:
        yield "splits is empty"
    if manifest.images_dir and not os.path.isabs(manifest.images_dir):
        yield f"images_dir must be absolute; it is {manifest.images_dir!r}"
    if num_described not in (0, num_classes):
        yield (
            f"class_descriptions describes {num_described} of the {num_classes} classes"
        )
    yield from _out_of_range(manifest.first_label, "first_label", 0)
    yield from _out_of_range(manifest.median_side, "median_side", 0)
    if manifest.depth_window and not is_window(manifest.depth_window):
        yield f"depth_window must be two samples; it is {manifest.depth_window!r:.200}"
    for name in (manifest.image_key, manifest.label_key):
        if not _is_encodable(name):
            yield f"the feature {name!r} can't be a name"
    if manifest.image_format not in IMAGE_FORMATS:
        expected = " or ".join(IMAGE_FORMATS)
        yield f"image_format must be {expected}; it is {manifest.image_format!r}"
    for split in splits:
        yield from _inconsistencies_of_split(split, manifest)
    shards = [
        # Splits of images in place may have images in the same folder or archive.
        f"{split.name}: " * bool(manifest.images_dir) + shard.path
        for split in splits
        for shard in split.shards
    ]
    for name, values in (("class_names", manifest.class_names), ("shards", shards)):
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{name} has {value!r} more than once"


def _inconsistencies_of_split(split: Split, manifest: Manifest) -> Iterator[str]:
    where, num_classes = f"split {split.name}", len(manifest.class_names)
    if not split.shards:
        yield f"{where} has no shards"
    for path in (split.index_path, *(shard.path for shard in split.shards)):
        if not is_inside(path) and path != ".":
            yield f"each path of {where} must be inside the set; one is {path!r:.200}"
    for shard in split.shards:
        most = shard.num_bytes
        yield from _out_of_range(most, f"num_bytes of {shard.path}", 1)
        name = f"num_records of {shard.path}"
        yield from _out_of_range(shard.num_records, name, 1, most)
        yield from _out_of_range(shard.class_mixing, f"class_mixing of {shard.path}", 0)
    num_counts, num_counted = len(split.label_counts), sum(split.label_counts)
    if num_counts != num_classes:
        yield f"{where} counts {num_counts} labels; there are {num_classes} classes"
    if manifest.multi_label and num_counts:
        for count in {min(split.label_counts), max(split.label_counts)}:
            name = f"label_counts of {where}"
            yield from _out_of_range(count, name, 0, split.num_examples)
    elif min(split.label_counts, default=0) < 0 or num_counted != split.num_examples:
        yield (
            f"the label_counts of {where} add up to {num_counted} examples, its shards"
            f" to {split.num_examples}"
        )


def _out_of_range(
    value: float, name: str, least: int, most: int = _MAX_COUNT
) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{name} must be from {least} to {most:,}; it is {value:,}"


def is_window(values: Sequence[int]) -> bool:
    """Returns whether values are a window: its lowest and its highest sample."""
    return len(values) == 2 and 0 <= values[0] < values[1] < 2**16


def is_inside(value: str) -> bool:
    """Returns whether a text is a relative path that can't lead out of its folder."""
    path = pathlib.PurePosixPath(value)
    is_relative = path.name and not path.is_absolute() and ".." not in path.parts
    return bool(is_relative) and "\0" not in value and _is_encodable(value)


def _is_encodable(name: str) -> bool:
    """Returns whether a text can be a name: not with half of a surrogate pair."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns the name of a record file, such as `train-00000-of-01024`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}"


def is_balanced(examples_per_rank: Iterable[float], mean: float) -> bool:
    """Returns whether `--shard_by=file` can use such examples per rank of each node."""
    limit = MAX_IMBALANCE * mean
    return all(abs(number - mean) <= limit for number in examples_per_rank)


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """A record set on disk; both folders are absolute."""

    manifest: Manifest
    records_dir: pathlib.Path  # The folder that the shards' paths are relative to.
    # The folder with `manifest.json` and the index files, which is `records_dir`
    # unless that folder isn't writable.
    index_dir: pathlib.Path
    # The states of the files that this process knows to be good (`verified`), by path.
    verified: dict[str, Any] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )


def write(manifest: Manifest, index_dir: str | os.PathLike[str]) -> None:
    """Writes the manifest file to the index folder of a set; must be called last.

    Raises UserError if the folder contains a manifest, which is never replaced.
    """
    path = pathlib.Path(index_dir, FILE_NAME)
    if os.path.lexists(path):
        raise UserError(
            f"{path} must be written, but another manifest is there and isn't replaced;"
            " move it away and rerun the command"
        )
    atomic_files.atomic_write_bytes(path, manifest.to_json().encode("utf-8"))


def load(data_dir: str, split: str | None) -> RecordSet:
    """Returns the record set in `data_dir`, which must contain a split; None for any.

    `data_dir` is the root folder of the set, one of its split folders
    (`RECORDS/train`), or the folder above a version folder of tensorflow_datasets.
    Raises UserError if the folder, the manifest or the split doesn't exist.
    """
    record_set = find(data_dir)
    if record_set is None:
        folder = pathlib.Path(os.path.abspath(data_dir))
        words = ["--raw_data_dir=RAW", f"--local_scratch_dir={data_dir}"]
        if (folder / CONVERSION_FOLDER).is_dir():
            raise UserError(
                f"{folder} holds a conversion that isn't finished: it has no"
                f" {FILE_NAME} yet. Rerun the command of that conversion, which goes on"
                " with it."
            )
        if (folder / "config.json").is_file() and (folder / "checkpoints").is_dir():
            raise UserError(
                f"{folder} is the folder of a run, not a record set. Pass the folder of"
                " the records as --data_dir, and that of the run as --model_dir."
            )
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        below = [entry for entry in entries if (entry / FILE_NAME).is_file()]
        if below:
            raise UserError(
                f"{folder} is not a record set. Found {first_of(map(str, below))}: pass"
                f" --data_dir={shlex.quote(str(below[0]))}"
            )
        if entries:  # The images themselves?
            raw, records = f"--raw_data_dir={data_dir}", f"{folder}-records"
            words = [raw, f"--local_scratch_dir={records}"]
            names = [entry.name.lower() for entry in entries]
            if not any(name.startswith(("val", "test", "dev")) for name in names):
                words.insert(1, "--validation_fraction=0.1")
        raise UserError(
            f"{folder} is not a record set: it has no {FILE_NAME}, nor has"
            f" {folder.parent}. A conversion writes that file at its end: convert the"
            f" images first, by {commands.command('imagenet-to-tfrecords', *words)}."
        )
    if split is not None and split not in record_set.manifest.splits:
        advice = f": {NO_VALIDATION}" if split == VALIDATION else ""
        raise UserError(
            f"the record set in {record_set.records_dir} has no split {split!r};"
            f" it has {', '.join(sorted(record_set.manifest.splits))}{advice}"
        )
    return record_set


def find(data_dir: str) -> RecordSet | None:
    """Returns the record set in `data_dir` (see `load`), or None without a manifest.

    Raises UserError if the folder doesn't exist, or it or its manifest can't be read.
    """
    folder = pathlib.Path(os.path.abspath(data_dir))
    with naming_failures(f"reading the record set in {data_dir}"):
        if not folder.is_dir():
            raise UserError(
                f"--data_dir must be a folder of record files; {folder}"
                f" {'is not a folder' if folder.exists() else 'does not exist'}. Name"
                " the --local_scratch_dir of the conversion."
            )
        if (own := _set_at(folder)) is not None:
            return own
        above = _set_at(folder.parent) if folder.name in SPLITS else None
        # A folder in the root of a set need not belong to it, whatever its name.
        if above is not None and folder.name in above.manifest.splits:
            return above
        version_folder = only_version_folder(folder)
        return _set_at(version_folder) if version_folder else None


def _set_at(records_dir: pathlib.Path) -> RecordSet | None:
    for index_dir in (records_dir, cache_folder(records_dir)):
        with contextlib.suppress(json_file.MissingFile):
            manifest = read_file(index_dir / FILE_NAME)
            folder = pathlib.Path(manifest.images_dir or records_dir)
            return RecordSet(manifest, folder, index_dir)
    return None


def only_version_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the version folder (such as 5.1.0) in `folder`, or None without one.

    Raises UserError if there are several.
    """
    versions = sorted(
        path
        for path in folder.iterdir()
        if _VERSION_FOLDER.fullmatch(path.name) and path.is_dir()
    )
    if len(versions) > 1:
        raise UserError(
            f"{folder} contains several versions of a data set; choose one of them, for"
            f" example {versions[-1]}"
        )
    return versions[0] if versions else None


def check_files(
    record_set: RecordSet, split_name: str, shard_indices: Sequence[int] | None = None
) -> None:
    """Raises UserError if a shard or the index file has another size than it should.

    Only the shards of these indices are checked; None stands for all.
    """
    split = record_set.manifest.splits[split_name]
    indices = range(len(split.shards)) if shard_indices is None else shard_indices
    problems = [
        *(_problem_of_shard(record_set.records_dir, split.shards[i]) for i in indices),
        _problem_of_index(record_set.index_dir, split),
    ]
    if problems := list(filter(None, problems)):
        raise UserError(
            f"{len(problems)} of the {len(indices) + 1} files of split {split_name}"
            f" (shards and offsets) in {record_set.records_dir} don't match"
            f" {record_set.index_dir / FILE_NAME}; the first one: {problems[0]}."
            f" {remedy(record_set)} If each node has only some of the shards,"
            " train with --shard_by=file."
        )


def _problem_of_shard(records_dir: pathlib.Path, shard: Shard) -> str | None:
    path = records_dir / shard.path
    try:
        num_bytes = os.stat(path).st_size
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        return f"{shard.path} can't be read ({error.strerror})"
    if num_bytes != shard.num_bytes and not path.is_dir():  # A folder of images.
        return f"{shard.path} has {num_bytes:,} bytes; expected {shard.num_bytes:,}"
    return None


def _problem_of_index(index_dir: pathlib.Path, split: Split) -> str | None:
    name, num_examples = split.index_path, split.num_examples
    try:
        shape = map_array(index_dir / name).shape
    except (OSError, ValueError, EOFError) as error:
        return f"{name} can't be read ({error})"
    if shape != (num_examples,):
        return f"{name} has shape {shape}; expected ({num_examples},)"
    return None


def index_path(split_name: str) -> str:
    """Returns the name of a split's index file in the index folder."""
    return f"{split_name}-index.npy"


def map_array(path: pathlib.Path) -> Any:
    """Returns the array in a file, whose values are read when they are used."""
    regular_file.open_regular(path).close()  # Not a pipe, which np.load would wait for.
    return np.load(path, mmap_mode="r")


def cache_folder(data_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the folder for the index of a set whose own folder isn't writable.

    It is `indexes/<hash of the set's absolute path>` in `cache()`.
    """
    digest = hashlib.sha256(os.fsencode(os.path.abspath(data_dir))).hexdigest()
    return cache() / "indexes" / digest[:16]


def cache() -> pathlib.Path:
    """Returns the cache folder of this project, which needn't exist."""
    # As in install/build_horovod.sh, an empty variable counts as unset.
    if named := os.environ.get("RESNET_CPU_CACHE"):
        return pathlib.Path(os.path.abspath(named))
    if named := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.path.abspath(named), "resnet-cpu")
    return pathlib.Path(os.path.expanduser("~/.cache/resnet-cpu"))


def remedy(record_set: RecordSet) -> str:
    """Returns the advice for files that don't match the manifest."""
    if record_set.manifest.images_dir:
        return (
            "If the images were changed on purpose, or moved, delete"
            f" {record_set.index_dir} and make the index again."
        )
    if "indexed" not in record_set.manifest.source:
        return "Copy the record set again or convert it again."
    index = record_set.index_dir
    if index == record_set.records_dir:
        index = index / FILE_NAME
    return (
        f"If the records were changed on purpose, delete their old index, {index}, and"
        " rerun the command: it builds a new index."
    )


def fitting_recipe(contents: Manifest) -> str:
    """Returns the name of a recipe; empty for ImageNet's, which needs no --recipe."""
    split = contents.splits.get(TRAIN)
    num_images = split.num_examples if split else 0
    if num_images >= _IMAGENET_SIZE:
        return ""
    name, least = _KNOWN_RECIPES.get(contents.class_names, (OWN_RECIPE, 0))
    return name if num_images >= least and not contents.multi_label else OWN_RECIPE
