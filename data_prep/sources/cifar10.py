"""Reads CIFAR-10's binary and Python versions, as downloaded or unpacked.

cifar-10-binary.tar.gz or cifar-10-batches-bin/: batches.meta.txt, data_batch_1.bin ...
cifar-10-python.tar.gz or cifar-10-batches-py/: batches.meta, data_batch_1 ...

Source of both layouts: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import contextlib
import dataclasses
import gzip
import io
import pathlib
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources.image_list import Entry, ImageList, Source, missing_images
from resnet.base.errors import UserError

BATCHES = {  # The names of the files by split, without their extension.
    TRAIN: tuple(f"data_batch_{number}" for number in range(1, 6)),
    VALIDATION: ("test_batch",),
}
NUM_IMAGES = {TRAIN: 50_000, VALIDATION: 10_000}
_IMAGE_BYTES = 3 * 32 * 32  # The red, the green and the blue plane, row by row.
_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Version:
    """One of the two forms in which CIFAR-10 is published."""

    folder: str  # In the archive.
    archive: str
    meta_file: str  # With the names of the classes.
    extension: str  # Of the files with the images; empty if these are pickles.

    @property
    def files(self) -> list[str]:
        """Names of all files."""
        names = (*BATCHES[TRAIN], *BATCHES[VALIDATION])
        return [self.meta_file, *(name + self.extension for name in names)]


_BINARY = _Version(
    "cifar-10-batches-bin", "cifar-10-binary.tar.gz", "batches.meta.txt", ".bin"
)
_PYTHON = _Version("cifar-10-batches-py", "cifar-10-python.tar.gz", "batches.meta", "")
_VERSIONS = (_BINARY, _PYTHON)
ARCHIVES = tuple(version.archive for version in _VERSIONS)


def find(root: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder or archive with CIFAR-10 in or at `root`, None without one.

    Of several it is the first of: unpacked, archive; binary version, Python version.
    """
    folders = [
        path
        for version in _VERSIONS
        for path in (root, root / version.folder)
        if (path / version.meta_file).is_file()
    ]
    archives = [root / name for name in ARCHIVES if (root / name).is_file()]
    return next(iter(folders + archives), None)


def read(root: pathlib.Path) -> Source:
    """Returns the images of the CIFAR-10 that `find` finds, all in memory.

    Both versions give images of the same names, "data_batch_1_00000.png" and so on.
    Raises UserError if a file is missing, truncated or not as published.
    """
    path = find(root)
    if path is None:
        raise FileNotFoundError(f"no CIFAR-10 in {root}")
    version = next(
        version
        for version in _VERSIONS
        if path.name == version.archive or (path / version.meta_file).is_file()
    )
    if path.is_file():
        files = _read_archive(path, version)
    else:
        paths = [path / name for name in version.files]
        files = {file.name: file.read_bytes() for file in paths if file.is_file()}
    if missing := [name for name in version.files if name not in files]:
        raise UserError(
            f"{path} must contain CIFAR-10's files {', '.join(version.files)}; it lacks"
            f" {', '.join(missing)}. Download or unpack it again."
        )
    with _naming(path, version.meta_file):
        class_names = _class_names(version, files[version.meta_file])
    splits = {}
    for split, names in BATCHES.items():
        entries = []
        pixels = []
        for name in names:
            filename = name + version.extension
            with _naming(path, filename):
                labels, planes = _batch(version, files[filename], len(class_names))
            container = str(path if path.is_file() else path / filename)
            for index, label in enumerate(labels.tolist()):
                image_name = f"{name}_{index:05d}.png"
                entries.append(Entry(container, image_name, label, 0, _IMAGE_BYTES))
            pixels.append(planes)
        images = ImageList.of(class_names, entries)
        splits[split] = dataclasses.replace(images, pixels=np.concatenate(pixels))
    return Source(
        class_names=class_names,
        splits=splits,
        description={"raw_data_dir": str(root), "cifar10": path.name},
        warnings=tuple(
            f"{clause} of CIFAR-10" for clause in missing_images(splits, NUM_IMAGES)
        ),
    )


@contextlib.contextmanager
def _naming(path: pathlib.Path, filename: str) -> Iterator[None]:
    """Turns any error about the content of a file into a UserError."""
    try:
        yield
    except Exception as error:  # Corrupt pickles raise errors of any type.
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(
            f"the file {filename} of {path} is not as published: {reason}. Download or"
            " unpack it again."
        ) from error


def _read_archive(archive: pathlib.Path, version: _Version) -> dict[str, bytes]:
    """Returns the contents of the files in the archive's folder, by their names."""
    files = {}
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    folder, _, name = member.name.removeprefix("./").rpartition("/")
                    content = tar.extractfile(member) if member.isreg() else None
                    if content is not None and folder == version.folder:
                        files[name] = content.read()
            while stream.read(_BLOCK_BYTES):
                pass  # Up to the checksum, which is behind the tar archive's end.
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{archive} is not a readable tar.gz archive: {error}. Download it again."
        ) from error
    return files


def _class_names(version: _Version, content: bytes) -> tuple[str, ...]:
    if version is _BINARY:
        names = [line for line in content.decode().splitlines() if line]
    else:
        names = [_text(name) for name in _unpickled(content)["label_names"]]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"the names of its classes are {names}")
    return tuple(names)


def _batch(
    version: _Version, content: bytes, num_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Returns the class indices `[num_images]` and planes `[num_images, 3072]`."""
    if version is _BINARY:
        num_images, rest = divmod(len(content), 1 + _IMAGE_BYTES)
        if rest or not num_images:
            raise ValueError(
                f"it has {len(content):,} bytes; expected a multiple of"
                f" {1 + _IMAGE_BYTES:,}"
            )
        rows = np.frombuffer(content, np.uint8).reshape(num_images, -1)
        labels, pixels = rows[:, 0], rows[:, 1:]
    else:
        fields = _unpickled(content)
        labels, pixels = np.array(fields["labels"], np.uint8), fields["data"]
        is_whole = pixels.shape == (len(labels), _IMAGE_BYTES) and len(labels)
        if not is_whole or pixels.dtype != np.uint8:
            raise ValueError(
                f"it has {len(labels):,} labels, and pixels of the shape"
                f" {pixels.shape} and type {pixels.dtype}"
            )
    if max(labels) >= num_classes:
        raise ValueError(
            f"its labels must be from 0 to {num_classes - 1}; one is {max(labels)}"
        )
    return labels, pixels


class _Unpickler(pickle.Unpickler):
    """Reads pickles of containers, numbers, strings and arrays; runs no other code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Returns the function or class of NumPy that a pickle names."""
        names = {
            # An array whose content the pickle then sets.
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0, np.uint8),
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module_name, global_name) not in names:
            raise pickle.UnpicklingError(
                f"it names {module_name}.{global_name}, which could run code"
            )
        return names[module_name, global_name]


def _unpickled(content: bytes) -> dict[str, Any]:
    """Returns the dictionary in a pickle of Python 2, whose strings are bytes."""
    fields = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return {_text(name): value for name, value in fields.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
