"""Labelled images to convert: one image, a compact list of many, and a source of all.

A source is image folders, ImageNet's archives, CIFAR-10 or TensorFlow Datasets.
"""

import array
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

from data_prep.records import image_encoding, tf_example, tfrecord
from resnet.base.errors import UserError

# The encoding of file names, independent of the locale.
_ENCODING = ("utf-8", "surrogateescape")
_MAX_IMAGE_BYTES = 2**31  # More than any image that can be decoded has.
_WHOLE_FILE = -1  # Stands for the size of an image file.
_KEY_BYTES = 16  # Prefix of the SHA-256 that is the sort key; no collision is known.
_CHUNK = 65_536  # Images per chunk of sort keys, to bound memory.
_MAX_STATS = 1_000  # Files whose size is read to estimate the total size.


@dataclasses.dataclass(frozen=True, slots=True)
class SourceImage:
    """One image: a file, a span of an archive, a feature of a record, or pixels.

    Attributes:
        path: Path of the image file, or of the archive or record file with the image.
        filename: File name of the image without the folder.
        class_name: Synset or name of the class folder.
        offset: Byte offset of the image or its record in the file.
        num_bytes: Size in bytes of the image in an archive, or of the record; None for
            an image file.
        image_key: Name of the record's feature with the image; None if the image isn't
            in a record.
        pixels: Red, green and blue plane of a square image that isn't encoded, row by
            row; None for an encoded image.
    """

    path: str
    filename: str
    class_name: str
    offset: int = 0
    num_bytes: int | None = None
    image_key: str | None = None
    pixels: bytes | None = None

    @property
    def name(self) -> str:
        """Name of the image in messages."""
        if self.num_bytes is None and self.image_key is None:
            return self.path
        return f"{self.path}: {self.filename}"

    def read(self) -> bytes:
        """Returns the encoded image; one that isn't encoded as PNG.

        Raises:
            UserError: If the file is too large for an image, the archive is truncated,
                or the record is corrupt or lacks the feature `image_key`.
            OSError: If the file can't be read.
        """
        if self.pixels is not None:
            return _png(self.pixels)
        if self.image_key is not None:
            return self._read_feature(self.image_key)
        with open(self.path, "rb", buffering=0) as file:
            if self.num_bytes is not None:
                return self._read_span(file.fileno(), self.num_bytes)
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes > _MAX_IMAGE_BYTES:
                raise UserError(
                    f"{self.path} must be an image; it has {num_bytes:,} bytes, more"
                    f" than the {_MAX_IMAGE_BYTES:,} that an image can have. Replace"
                    " it; if it is removed, the conversion has to start over."
                )
            return file.readall()

    def read_start(self) -> bytes:
        """Returns the first `image_encoding.START_BYTES` of the encoded image.

        Raises:
            UserError: As `read` does.
            OSError: If the file can't be read.
        """
        num_bytes = image_encoding.START_BYTES
        if self.image_key is not None or self.pixels is not None:
            return self.read()[:num_bytes]
        if self.num_bytes is not None:
            num_bytes = min(num_bytes, self.num_bytes)
        with open(self.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), num_bytes, self.offset)

    def _read_span(self, descriptor: int, num_bytes: int) -> bytes:
        data = os.pread(descriptor, num_bytes, self.offset)
        if len(data) != num_bytes:
            raise UserError(
                f"{self.path} is truncated: {self.filename} has {num_bytes:,} bytes"
                f" from byte {self.offset:,}, but only {len(data):,} of them are there."
                " Copy the file again."
            )
        return data

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
    """An image as `ImageList.of` takes it.

    Attributes:
        path: Path of the folder of an image file, or of the file with the image.
        filename: File name of the image without the folder.
        class_index: Index of its class.
        offset: As in `SourceImage`.
        num_bytes: As in `SourceImage`, but -1 for an image file.
    """

    path: str
    filename: str
    class_index: int
    offset: int = 0
    num_bytes: int = _WHOLE_FILE


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ImageList:
    """A list of `SourceImage`s in 32 bytes each plus the file name.

    Each array has the shape `[num_images]` and one value of each image, as it is in
    `SourceImage` unless described here.

    Attributes:
        class_names: Class names in label order, including classes without images here.
        class_indices: Index into `class_names`, int32.
        image_key: That of all images.
        containers: Paths of folders, archives or record files.
        container_indices: Index into `containers`, int32.
        filenames: Concatenation of all encoded file names.
        filename_ends: End of each file name in `filenames`, int64.
        offsets: int64.
        sizes: `SourceImage.num_bytes`, int64; -1 stands for None.
        pixels: `[num_images, num_bytes]`, uint8; None for encoded images.
    """

    class_names: tuple[str, ...]
    class_indices: npt.NDArray[np.int32]
    image_key: str | None
    containers: tuple[str, ...]
    container_indices: npt.NDArray[np.int32]
    filenames: bytes
    filename_ends: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    pixels: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(
        cls,
        class_names: tuple[str, ...],
        entries: Iterable[Entry],
        image_key: str | None = None,
    ) -> "ImageList":
        """Returns the list of the entries, in their order, which are read once."""
        containers: dict[str, int] = {}
        class_indices, container_indices = array.array("i"), array.array("i")
        filenames = bytearray()
        ends, offsets, sizes = array.array("q"), array.array("q"), array.array("q")
        for path, filename, class_index, offset, num_bytes in entries:
            class_indices.append(class_index)
            container_indices.append(containers.setdefault(path, len(containers)))
            filenames += _encode(filename)
            ends.append(len(filenames))
            offsets.append(offset)
            sizes.append(num_bytes)
        return cls(
            class_names=class_names,
            class_indices=np.array(class_indices, np.int32),
            image_key=image_key,
            containers=tuple(containers),
            container_indices=np.array(container_indices, np.int32),
            filenames=bytes(filenames),
            filename_ends=np.array(ends, np.int64),
            offsets=np.array(offsets, np.int64),
            sizes=np.array(sizes, np.int64),
        )

    def __len__(self) -> int:
        return len(self.class_indices)

    def __getitem__(self, index: int) -> SourceImage:
        index = range(len(self))[index]  # Negative indices and IndexError as in a list.
        start = int(self.filename_ends[index - 1]) if index else 0
        end = int(self.filename_ends[index])
        filename = self.filenames[start:end].decode(*_ENCODING)
        container = self.containers[self.container_indices[index]]
        num_bytes = int(self.sizes[index])
        is_file = num_bytes == _WHOLE_FILE
        return SourceImage(
            path=os.path.join(container, filename) if is_file else container,
            filename=filename,
            class_name=self.class_names[self.class_indices[index]],
            offset=int(self.offsets[index]),
            num_bytes=None if is_file else num_bytes,
            image_key=self.image_key,
            pixels=None if self.pixels is None else self.pixels[index].tobytes(),
        )

    def __iter__(self) -> Iterator[SourceImage]:
        return (self[index] for index in range(len(self)))

    def subset(self, indices: npt.NDArray[np.int64]) -> "ImageList":
        """Returns the list of the images with the indices `[num_images]`."""
        ends = self.filename_ends[indices]
        starts = np.concatenate([[0], self.filename_ends])[indices]
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return dataclasses.replace(
            self,
            class_indices=self.class_indices[indices],
            container_indices=self.container_indices[indices],
            filenames=b"".join(self.filenames[start:end] for start, end in spans),
            filename_ends=np.cumsum(ends - starts),
            offsets=self.offsets[indices],
            sizes=self.sizes[indices],
            pixels=None if self.pixels is None else self.pixels[indices],
        )

    def order(self, seed: int, split: str) -> npt.NDArray[np.int64]:
        """Returns a deterministic pseudorandom order of the images.

        The images are sorted by the SHA-256 of "seed/split/class/file name". So the
        order doesn't depend on the order of a folder or archive listing, on paths or on
        library versions, and adding or removing an image doesn't change the order of
        the others.

        Returns:
            A permutation of the image indices, `[num_images]`, int64.
        """
        prefixes = [_encode(f"{seed}/{split}/{name}/") for name in self.class_names]
        keys = np.empty((len(self), 2), np.uint64)
        for first in range(0, len(self), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            ends = self.filename_ends[chunk].tolist()
            start = int(self.filename_ends[first - 1]) if first else 0
            digests = bytearray()
            for class_index, end in zip(self.class_indices[chunk], ends, strict=True):
                text = prefixes[class_index] + self.filenames[start:end]
                digests += hashlib.sha256(text).digest()[:_KEY_BYTES]
                start = end
            keys[chunk] = np.frombuffer(digests, ">u8").reshape(-1, 2)
        return np.lexsort((keys[:, 1], keys[:, 0]))

    def estimate_bytes(self, image_format: str) -> tuple[int, int]:
        """Returns estimates of the size of all images and of those stored as they are.

        The sizes in archives are exact, and their images count as JPEG. The sizes of
        image files are extrapolated from at most 1,000 of them, evenly spaced. Images
        in records count as re-encoded, since their format isn't known.

        Args:
            image_format: Format of the stored images, "jpeg" or "png".

        Raises:
            OSError: If one of the files doesn't exist.
        """
        is_file = self.sizes == _WHOLE_FILE
        num_bytes = int(self.sizes[~is_file].sum())
        num_kept = 0
        if self.image_key is None and image_format == "jpeg":
            num_kept = num_bytes
        files = np.flatnonzero(is_file)
        num_sampled = min(len(files), _MAX_STATS)
        sampled = files[np.arange(num_sampled) * len(files) // max(num_sampled, 1)]
        sampled_bytes = sampled_kept = 0
        for index in sampled.tolist():
            with open(self[index].path, "rb", buffering=0) as file:
                start = file.read(image_encoding.START_BYTES)
                size = os.fstat(file.fileno()).st_size
            sampled_bytes += size
            if image_encoding.keeps_its_size(start, image_format):
                sampled_kept += size
        if num_sampled:
            num_bytes += sampled_bytes * len(files) // num_sampled
            num_kept += sampled_kept * len(files) // num_sampled
        return num_bytes, num_kept

    def has_lossy_image(self) -> bool:
        """Returns whether an image is lossily compressed; reads up to the first one.

        Raises:
            UserError: If an image's record is corrupt.
            OSError: If an image can't be read.
        """
        if self.pixels is not None:
            return False
        return any(image_encoding.is_lossy(image.read_start()) for image in self)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of classes, file names, known offsets, sizes and pixels.

        It doesn't depend on the path of the folder or archive.
        """
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        digest.update(self.class_indices.astype("<i4").tobytes())
        digest.update(self.filenames)
        for numbers in (self.filename_ends, self.offsets, self.sizes):
            digest.update(numbers.astype("<i8").tobytes())
        if self.pixels is not None:
            digest.update(np.ascontiguousarray(self.pixels).data)
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Source:
    """All labelled images of a source.

    Attributes:
        class_names: Class names; the label of a class, from 0, is its index.
        splits: Images by split (`train`, `validation`); one of the two can be missing.
        description: Origin of the images, as JSON values.
        class_descriptions: Description of each class, such as "tench, Tinca tinca", or
            empty.
        num_ignored_files: Number of files and folders that were ignored.
        ignored_kinds: Their numbers by kind, such as ".tif", if they are known.
        warnings: Warnings to show to the user.
    """

    class_names: tuple[str, ...]
    splits: dict[str, ImageList]
    description: dict[str, Any]
    class_descriptions: tuple[str, ...] = ()
    num_ignored_files: int = 0
    ignored_kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def missing_images(splits: dict[str, ImageList], expected: dict[str, int]) -> list[str]:
    """Returns a clause for each split that lacks images of a published set."""
    return [
        f"{split} holds {len(images):,} of {expected[split]:,} images"
        for split, images in splits.items()
        if len(images) != expected[split]
    ]


def files_digest(images: Sequence[SourceImage]) -> str:
    """Returns the SHA-256 of the sizes and modification times of the images' files.

    If a file is replaced under the same name, the digest changes.

    Raises:
        OSError: If a file doesn't exist.
    """
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
