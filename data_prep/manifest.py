"""The manifest of a converted set: which shards there are and what is in them.

`manifest.json` lies in the root of the set, beside the folders `train/` and
`validation/`. It is written last: a set that has one is whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pathlib
from collections import Counter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from data_prep import atomic_files
from data_prep.errors import UserError

FILE_NAME = "manifest.json"
FORMAT_VERSION = 1

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One record file.

    Attributes:
        path: Posix path, relative to the set's root.
        num_records: At least 1.
        num_bytes: Size of the file.
        sha256: Of the file's content, in hexadecimal.
    """

    path: str
    num_records: int
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
    """The train or the validation part of a set.

    Attributes:
        name: `train` or `validation`.
        shards: In the order in which their records are numbered.
        label_counts: Number of examples of each class, in the order of the labels.
        offsets_path: Posix path of the offsets file, relative to the set's root.
        offsets_sha256: Of the offsets file's content, in hexadecimal.
    """

    name: str
    shards: tuple[Shard, ...]
    label_counts: tuple[int, ...]
    offsets_path: str
    offsets_sha256: str

    @property
    def num_examples(self) -> int:
        """Number of records in all shards."""
        return sum(shard.num_records for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What there is to know of a converted set without reading its records.

    Attributes:
        class_names: Synsets or folder names, in the order of the labels.
        first_label: Label of the first class, as it stands in the records.
        splits: By name; one of the two can be missing.
        source: What the set was made from and with; for people, no code reads it.
        format_version: Of this file's layout.
    """

    class_names: tuple[str, ...]
    first_label: int
    splits: dict[str, Split]
    source: dict[str, Any]
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Returns the manifest file's text."""
        fields = dataclasses.asdict(self)
        for split in fields["splits"].values():
            del split["name"]  # It is the key already.
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str | os.PathLike[str]) -> Manifest:
        """Returns the manifest that `to_json` wrote.

        Args:
            text: The file's text.
            path: The file's name, for messages.

        Raises:
            UserError: If the text is no manifest, is of another format version or
                contradicts itself.
        """
        try:
            return _parse(json.loads(text))
        except ValueError as error:
            raise UserError(
                f"{path} is not a manifest that can be read: {error}. Convert the"
                " pictures again, or use the version of the project that wrote it."
            ) from error


def write(manifest: Manifest, root: str | os.PathLike[str]) -> None:
    """Writes the manifest file of the set in `root`; to be called last."""
    data = manifest.to_json().encode("utf-8")
    atomic_files.atomic_write_bytes(pathlib.Path(root, FILE_NAME), data)


def load(data_dir: str, split: str) -> tuple[Manifest, pathlib.Path]:
    """Returns the manifest of the set in `data_dir`, and the set's root folder.

    Args:
        data_dir: The set's root folder or one of its split folders (`RECORDS/train`).
        split: Name of a split that the set must have.

    Raises:
        UserError: If there is no such folder, no manifest or no such split.
    """
    folder = pathlib.Path(os.path.abspath(data_dir))
    if not folder.is_dir():
        raise UserError(f"data_dir must be a folder of records, and {folder} is none")
    manifest, root = _load_from(folder), folder
    if manifest is None:
        # A folder beside the splits, RECORDS/other, is not a part of the set.
        manifest, root = _load_from(folder.parent), folder.parent
        if manifest is not None and folder.name not in manifest.splits:
            manifest = None
    if manifest is None:
        raise UserError(
            f"expected a converted set in {folder}, with a {FILE_NAME} there or, if it"
            f" is a split's folder, in {folder.parent}; there is none."
            " imagenet-to-tfrecords writes it at its end: convert the pictures with"
            " data_prep/imagenet_to_tfrecords.py"
        )
    if split not in manifest.splits:
        raise UserError(
            f"the set in {root} has no split {split!r};"
            f" it has {', '.join(sorted(manifest.splits))}"
        )
    return manifest, root


def check_files(root: str | os.PathLike[str], split: Split) -> None:
    """Checks that the split's files are there, by their sizes and not their content.

    Raises:
        UserError: If a shard is missing or has another size than in the manifest, or
            the offsets file doesn't have one offset for each example.
    """
    problems = []
    for shard in split.shards:
        try:
            num_bytes = pathlib.Path(root, shard.path).stat().st_size
        except OSError as error:
            problems.append(f"{shard.path} can't be read ({error.strerror})")
        else:
            if num_bytes != shard.num_bytes:
                problems.append(
                    f"{shard.path} has {num_bytes:,} bytes instead of"
                    f" {shard.num_bytes:,}"
                )
    try:
        offsets = np.load(pathlib.Path(root, split.offsets_path), mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        problems.append(f"{split.offsets_path} can't be read ({error})")
    else:
        if offsets.shape != (split.num_examples,):
            problems.append(
                f"{split.offsets_path} has the shape {offsets.shape} instead of"
                f" ({split.num_examples},)"
            )
    if problems:
        raise UserError(
            f"the set in {root} is not what its {FILE_NAME} says: {problems[0]}; in"
            f" all {len(problems)} of the {len(split.shards) + 1} files of split"
            f" {split.name} are bad. Copy or convert the set again."
        )


def write_offsets(
    root: str | os.PathLike[str], split_name: str, offsets: npt.NDArray[np.int64]
) -> tuple[str, str]:
    """Writes a split's offsets file.

    Args:
        root: The set's root folder.
        split_name: `train` or `validation`.
        offsets: `[num_examples]`, int64; see `read_offsets`.

    Returns:
        The file's path relative to `root`, and its SHA-256.
    """
    file = io.BytesIO()
    np.save(file, np.asarray(offsets, np.int64), allow_pickle=False)
    path = f"{split_name}-offsets.npy"
    atomic_files.atomic_write_bytes(pathlib.Path(root, path), file.getvalue())
    return path, hashlib.sha256(file.getvalue()).hexdigest()


def read_offsets(root: str | os.PathLike[str], split: Split) -> npt.NDArray[np.int64]:
    """Returns the byte offset of each record in its shard, `[num_examples]`, int64.

    The records are in the order of the shards and, within a shard, in that of the file.

    Raises:
        UserError: If the file can't be read or is not the one that the manifest means.
    """
    path = pathlib.Path(root, split.offsets_path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"the offsets file {path} can't be read ({error.strerror});"
            " copy or convert the set again"
        ) from error
    if hashlib.sha256(data).hexdigest() != split.offsets_sha256:
        raise UserError(
            f"the offsets file {path} has another SHA-256 than in {FILE_NAME};"
            " copy or convert the set again"
        )
    offsets: npt.NDArray[np.int64] = np.load(io.BytesIO(data), allow_pickle=False)
    if offsets.shape != (split.num_examples,) or offsets.dtype != np.int64:
        raise UserError(
            f"the offsets file {path} must hold {split.num_examples} numbers of type"
            f" int64, and holds {offsets.dtype} in the shape {offsets.shape};"
            " convert the set again"
        )
    return offsets


def shard_of_example(split: Split) -> npt.NDArray[np.int32]:
    """Returns the index of each example's shard, `[num_examples]`, int32."""
    indices = np.arange(len(split.shards), dtype=np.int32)
    return np.repeat(indices, [shard.num_records for shard in split.shards])


def _load_from(folder: pathlib.Path) -> Manifest | None:
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the manifest {path} can't be read: {error}") from error
    return Manifest.from_json(text, path)


def _parse(fields: Any) -> Manifest:
    """Returns the manifest of parsed JSON; a ValueError says what is wrong with it."""
    version = _get(fields, "format_version", int, "the file")
    if version != FORMAT_VERSION:
        raise ValueError(f"format_version must be {FORMAT_VERSION}; it is {version}")
    class_names = _get_list(fields, "class_names", str, "the file")
    if not class_names:
        raise ValueError("class_names is empty")
    _check_unique(class_names, "class_names")
    splits = _get(fields, "splits", dict, "the file")
    if not splits:
        raise ValueError("splits is empty")
    parsed = {
        name: _parse_split(split, name, len(class_names))
        for name, split in splits.items()
    }
    _check_unique(
        [shard.path for split in parsed.values() for shard in split.shards], "shards"
    )
    return Manifest(
        class_names=tuple(class_names),
        first_label=_get_count(fields, "first_label", "the file", least=0),
        splits=parsed,
        source=_get(fields, "source", dict, "the file"),
        format_version=version,
    )


def _parse_split(fields: Any, name: str, num_classes: int) -> Split:
    where = f"split {name}"
    shards = tuple(
        _parse_shard(shard, f"shard {index} of {where}")
        for index, shard in enumerate(_get_list(fields, "shards", dict, where))
    )
    if not shards:
        raise ValueError(f"{where} has no shards")
    label_counts = tuple(_get_list(fields, "label_counts", int, where))
    split = Split(
        name=name,
        shards=shards,
        label_counts=label_counts,
        offsets_path=_get_path(fields, "offsets_path", where),
        offsets_sha256=_get(fields, "offsets_sha256", str, where),
    )
    if len(label_counts) != num_classes:
        raise ValueError(
            f"{where} counts {len(label_counts)} labels; there are {num_classes}"
            " classes"
        )
    if min(label_counts) < 0 or sum(label_counts) != split.num_examples:
        raise ValueError(
            f"the label_counts of {where} add up to {sum(label_counts)} examples, its"
            f" shards to {split.num_examples}"
        )
    return split


def _parse_shard(fields: Any, where: str) -> Shard:
    return Shard(
        path=_get_path(fields, "path", where),
        num_records=_get_count(fields, "num_records", where, least=1),
        num_bytes=_get_count(fields, "num_bytes", where, least=1),
        sha256=_get(fields, "sha256", str, where),
    )


def _get(fields: Any, key: str, kind: type[_T], where: str) -> _T:
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a JSON object")
    if key not in fields:
        raise ValueError(f"{where} has no {key}")
    value = fields[key]
    if not _is_a(value, kind):
        raise ValueError(
            f"{key} of {where} must be of type {kind.__name__}; it is {value!r:.50}"
        )
    return value  # type: ignore[no-any-return]


def _get_list(fields: Any, key: str, kind: type[_T], where: str) -> list[_T]:
    values: list[_T] = _get(fields, key, list, where)
    for value in values:
        if not _is_a(value, kind):
            raise ValueError(
                f"{key} of {where} must hold only values of type {kind.__name__};"
                f" one is {value!r:.50}"
            )
    return values


def _get_count(fields: Any, key: str, where: str, least: int) -> int:
    value = _get(fields, key, int, where)
    if value < least:
        raise ValueError(f"{key} of {where} must be at least {least}; it is {value}")
    return value


def _get_path(fields: Any, key: str, where: str) -> str:
    value = _get(fields, key, str, where)
    path = pathlib.PurePosixPath(value)
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{key} of {where} must be a path inside the set; it is {value!r}"
        )
    return value


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_unique(values: list[str], name: str) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{name} has {repeated[0]!r} more than once")
