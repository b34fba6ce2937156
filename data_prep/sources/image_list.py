"""Labelled images to convert: one image, a compact list of many, and a source of all.

A source is image folders, ImageNet's archives, CIFAR-10 or TensorFlow Datasets.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from data_prep.images import image_encoding
from data_prep.records import labels, tf_example, tfrecord
from data_prep.records.labels import Labels
from data_prep.sources import imagenet_labels
from resnet.base.errors import UserError

# The encoding of file names, independent of the locale.
_ENCODING = ("utf-8", "surrogateescape")
_MAX_IMAGE_BYTES = 2**31  # More than any image that can be decoded has.
_WHOLE_FILE = -1  # Stands for the size of an image file.
_KEY_BYTES = 16  # Prefix of the SHA-256 that is the sort key; no collision is known.
_CHUNK = 65_536  # Images per chunk of sort keys, to bound memory.
_MAX_STATS = 1_000  # Files whose size is read to estimate the total size.
_ROW = np.dtype("i4, i4, i8, i8, i8")
_ROW.names = ("class_index", "container", "filename_end", "offset", "num_bytes")


@dataclasses.dataclass(frozen=True, slots=True)
class SourceImage:
    """One image: a file, a span of an archive, a feature of a record, or pixels."""

    path: str  # Of the image file, or of the archive or record file with the image.
    filename: str  # File name of the image without the folder.
    class_name: str  # Synset or name of the class folder; empty if it has labels.
    offset: int = 0  # Byte offset of the image or its record in the file.
    num_bytes: int | None = None  # Of the span or the record; None for an image file.
    image_key: str | None = None  # The record's feature; None if it isn't in a record.
    # Red, green and blue plane of a square image that isn't encoded, row by row.
    pixels: bytes | None = None

    @property
    def name(self) -> str:
        """Name of the image in messages."""
        if self.num_bytes is None and self.image_key is None:
            return self.path
        return f"{self.path}: {self.filename}"

    def read(self) -> bytes:
        """Returns the encoded image; one that isn't encoded as PNG.

        Raises UserError if the content isn't as expected, OSError as files do.
        """
        if self.pixels is not None:
            return _png(self.pixels)
        if self.image_key is not None:
            return self._read_feature(self.image_key)
        with open(self.path, "rb", buffering=0) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if self.num_bytes is None and num_bytes > _MAX_IMAGE_BYTES:
                raise UserError(
                    f"{self.path} must be an image; it has {num_bytes:,} bytes, more"
                    f" than the {_MAX_IMAGE_BYTES:,} that an image can have. Replace"
                    " it; if it is removed, the conversion has to start over."
                )
            if self.num_bytes is None:
                return file.readall()
            data = os.pread(file.fileno(), self.num_bytes, self.offset)
        if len(data) != self.num_bytes:
            raise UserError(
                f"{self.path} is truncated: {self.filename} has {self.num_bytes:,}"
                f" bytes from byte {self.offset:,}, but only {len(data):,} of them are"
                " there. Copy the file again."
            )
        return data

    def read_start(self) -> bytes:
        """Returns the first `START_BYTES` of the encoded image, as `read` does all."""
        num_bytes = image_encoding.START_BYTES
        if self.image_key is not None or self.pixels is not None:
            return self.read()[:num_bytes]
        if self.num_bytes is not None:
            num_bytes = min(num_bytes, self.num_bytes)
        with open(self.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), num_bytes, self.offset)

    def _read_feature(self, image_key: str) -> bytes:
        try:
            record = tfrecord.read_at(self.path, self.offset)
            return tf_example.bytes_of(tf_example.parse_example(record), image_key)
        except ValueError as error:
            raise UserError(
                f"the record of {self.filename} at byte {self.offset:,} of {self.path}"
                f" is corrupt: {error}. Prepare the data set again."
            ) from error


class Entry(NamedTuple):
    """An image as `ImageList.of` takes it."""

    path: str  # Of the folder of an image file, or of the file with the image.
    filename: str
    class_index: int
    offset: int = 0
    num_bytes: int = _WHOLE_FILE


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ImageList:
    """A list of `SourceImage`s in 32 bytes each plus the file name."""

    class_names: tuple[str, ...]  # In label order, also of classes without images here.
    containers: tuple[str, ...]  # Paths of folders, archives or record files.
    filenames: bytes  # Concatenation of all encoded file names.
    rows: npt.NDArray[Any]  # `[num_images]` of `_ROW`, which has indices and ends.
    image_key: str | None  # That of all images.
    pixels: npt.NDArray[np.uint8] | None = None  # `[num_images, num_bytes]`.
    # Of images that may have several, `[num_images, num_labels]`; None if each has one
    # class.
    several_labels: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(
        cls,
        class_names: tuple[str, ...],
        entries: Iterable[Entry],
        image_key: str | None = None,
    ) -> "ImageList":
        """Returns the list of the entries, in their order, which are read once."""
        containers: dict[str, int] = {}
        filenames = bytearray()

        def rows() -> Iterator[tuple[int, ...]]:
            for path, filename, class_index, offset, num_bytes in entries:
                container = containers.setdefault(path, len(containers))
                filenames.extend(_encode(filename))
                yield class_index, container, len(filenames), offset, num_bytes

        array = np.fromiter(rows(), _ROW)
        names = bytes(filenames)
        return cls(class_names, tuple(containers), names, array, image_key)

    @property
    def class_indices(self) -> npt.NDArray[np.int32]:
        """Index into `class_names` of each image, `[num_images]`."""
        return self.rows["class_index"]

    @property
    def labels(self) -> Labels:
        """The labels of the images."""
        several = self.several_labels
        return self.class_indices if several is None else several

    def label_counts(self) -> npt.NDArray[np.int64]:
        """Returns the number of images that have each label."""
        return labels.counts(self.labels, len(self.class_names))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> SourceImage:
        index = range(len(self))[index]  # Negative indices and IndexError as in a list.
        start = int(self.rows[index - 1]["filename_end"]) if index else 0
        class_index, container, end, offset, num_bytes = self.rows[index].item()
        filename = self.filenames[start:end].decode(*_ENCODING)
        path = self.containers[container]
        is_file = num_bytes == _WHOLE_FILE
        return SourceImage(
            path=os.path.join(path, filename) if is_file else path,
            filename=filename,
            class_name=self._class_name(class_index),
            offset=offset,
            num_bytes=None if is_file else num_bytes,
            image_key=self.image_key,
            pixels=None if self.pixels is None else self.pixels[index].tobytes(),
        )

    def _class_name(self, index: int) -> str:
        return self.class_names[index] if self.several_labels is None else ""

    def __iter__(self) -> Iterator[SourceImage]:
        return (self[index] for index in range(len(self)))

    def subset(self, indices: npt.NDArray[np.int64]) -> "ImageList":
        """Returns the list of the images with the indices `[num_images]`."""
        rows = self.rows[indices]
        ends = rows["filename_end"].copy()
        starts = np.concatenate([[0], self.rows["filename_end"]])[indices]
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        rows["filename_end"] = np.cumsum(ends - starts)
        return dataclasses.replace(
            self,
            rows=rows,
            filenames=b"".join(self.filenames[start:end] for start, end in spans),
            pixels=None if self.pixels is None else self.pixels[indices],
            several_labels=None
            if self.several_labels is None
            else self.labels[indices],
        )

    def order(self, seed: int, split: str) -> npt.NDArray[np.int64]:
        """Returns a deterministic pseudorandom order, a permutation `[num_images]`.

        The images are sorted by the SHA-256 of "seed/split/class/file name", with no
        class if they may have several labels: no path and no other image changes the
        order.
        """
        names = map(self._class_name, range(len(self.class_names)))
        prefixes = [_encode(f"{seed}/{split}/{name}/") for name in names]
        keys = np.empty((len(self), 2), np.uint64)
        start = 0
        for first in range(0, len(self), _CHUNK):
            chunk = self.rows[first : first + _CHUNK]
            digests = bytearray()
            for class_index, end in chunk[["class_index", "filename_end"]].tolist():
                text = prefixes[class_index] + self.filenames[start:end]
                digests += hashlib.sha256(text).digest()[:_KEY_BYTES]
                start = end
            keys[first : first + _CHUNK] = np.frombuffer(digests, ">u8").reshape(-1, 2)
        return np.lexsort((keys[:, 1], keys[:, 0]))

    def estimate_kept_bytes(self, image_format: str) -> int:
        """Returns an estimate of the size of those images that are stored as they are.

        Images in archives count as JPEG, those in records as re-encoded. The sizes of
        image files are extrapolated from at most 1,000 of them, evenly spaced.
        """
        is_file = self.rows["num_bytes"] == _WHOLE_FILE
        num_kept = 0
        if self.image_key is None and image_format == "jpeg":
            num_kept = int(self.rows["num_bytes"][~is_file].sum())
        files = np.flatnonzero(is_file)
        sample = files[:: -(-len(files) // _MAX_STATS) or 1]
        for image in (self[index] for index in sample.tolist()):
            if image_encoding.keeps_its_size(image.read_start(), image_format):
                num_kept += os.stat(image.path).st_size * len(files) // len(sample)
        return num_kept

    def has_lossy_image(self) -> bool:
        """Returns whether an image is lossily compressed; reads up to the first one."""
        if self.pixels is not None:
            return False
        return any(image_encoding.is_lossy(image.read_start()) for image in self)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of classes, file names, known offsets, sizes and pixels.

        It doesn't depend on the path of the folder or archive.
        """
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        digest.update(self.labels.astype("<i4").tobytes())
        digest.update(self.filenames)
        for name in ("filename_end", "offset", "num_bytes"):
            digest.update(self.rows[name].astype("<i8").tobytes())
        if self.pixels is not None:
            digest.update(np.ascontiguousarray(self.pixels).data)
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Source:
    """All labelled images of a source."""

    class_names: tuple[str, ...]  # The label of a class, from 0, is its index.
    splits: dict[str, ImageList]  # By split; `train` or `validation` can be missing.
    description: dict[str, Any]  # Origin of the images, as JSON values.
    num_ignored_files: int = 0  # Also folders.
    # Their numbers by kind, such as ".tif", if they are known.
    ignored_kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # To show to the user.
    # Of each training image, if known: images of one aren't to be divided.
    groups: tuple[str, ...] = ()

    @property
    def class_descriptions(self) -> tuple[str, ...]:
        """The words of ImageNet's classes, such as "tench, Tinca tinca"; or none."""
        return imagenet_labels.describe(self.class_names)

    @property
    def multi_label(self) -> bool:
        """Whether each image has any number of labels, rather than one class."""
        return any(s.several_labels is not None for s in self.splits.values())


def missing_images(splits: dict[str, ImageList], expected: dict[str, int]) -> list[str]:
    """Returns a clause for each split that lacks images of a published set."""
    return [
        f"{split} holds {len(images):,} of {expected[split]:,} images"
        for split, images in splits.items()
        if len(images) != expected[split]
    ]


def files_digest(images: Sequence[SourceImage]) -> str:
    """Returns the SHA-256 of the sizes and modification times of the images' files."""
    states: dict[str, tuple[int, int]] = {}  # An archive holds many images.
    digest = hashlib.sha256()
    for image in images:
        if image.path not in states:
            status = os.stat(image.path)
            states[image.path] = status.st_size, status.st_mtime_ns
        digest.update(repr(states[image.path]).encode())
    return digest.hexdigest()


def _png(pixels: bytes) -> bytes:
    """Returns the PNG file of a square image in planes."""
    side = math.isqrt(len(pixels) // 3)
    planes = np.frombuffer(pixels, np.uint8).reshape(3, side, side)
    file = io.BytesIO()
    Image.fromarray(np.moveaxis(planes, 0, -1)).save(file, "PNG")
    return file.getvalue()


def _encode(name: str) -> bytes:
    return name.encode(*_ENCODING)
