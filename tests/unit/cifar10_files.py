"""CIFAR-10's files in their published forms, with a few made-up images."""

import io
import pathlib
import struct
import tarfile

import numpy as np

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse"),
    *("ship", "truck"),
)
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
NUM_IMAGES = 4  # Per batch.


def images(batch: str) -> np.ndarray:
    """Returns the images of a batch, `[NUM_IMAGES, 32, 32, 3]` uint8."""
    generator = np.random.default_rng(BATCHES.index(batch))
    return generator.integers(0, 256, (NUM_IMAGES, 32, 32, 3), np.uint8)


def labels(batch: str) -> list[int]:
    first = NUM_IMAGES * BATCHES.index(batch)
    return [(first + index) % len(CLASSES) for index in range(NUM_IMAGES)]


def planes(batch: str) -> np.ndarray:
    return images(batch).transpose(0, 3, 1, 2).reshape(NUM_IMAGES, 3072)


def binary_files() -> dict[str, bytes]:
    files = {"batches.meta.txt": "\n".join((*CLASSES, "", "")).encode()}
    for batch in BATCHES:
        rows = np.array(labels(batch), np.uint8)[:, np.newaxis]
        files[f"{batch}.bin"] = np.concatenate([rows, planes(batch)], 1).tobytes()
    return files


def python_files() -> dict[str, bytes]:
    meta = {b"num_vis": 3072, b"label_names": [name.encode() for name in CLASSES]}
    files = {"batches.meta": pickle_of_python_2(meta)}
    for batch in BATCHES:
        fields = {b"labels": labels(batch), b"data": planes(batch)}
        files[batch] = pickle_of_python_2(fields)
    return files


def write_folder(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_archive(path: pathlib.Path, folder: str, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        directory = tarfile.TarInfo(folder)
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for name, content in {**files, "readme.html": b"text"}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def pickle_of_python_2(value: object) -> bytes:
    """Returns a value as Python 2's cPickle writes it, which the published files are.

    Its strings are bytes, and the names of NumPy's functions are those of that time.
    """
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value: object) -> bytes:
    if isinstance(value, int):
        return b"M" + struct.pack("<H", value)
    if isinstance(value, bytes) and len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, list):
        return b"](" + b"".join(map(_pickled, value)) + b"e"
    if isinstance(value, dict):
        items = b"".join(_pickled(key) + _pickled(value[key]) for key in value)
        return b"}(" + items + b"u"
    assert isinstance(value, np.ndarray)
    height, width = (_pickled(length) for length in value.shape)
    data_type = b"cnumpy\ndtype\nU\x02" + value.dtype.str[1:].encode()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01"
        + (height + width + b"\x86")
        + data_type
        + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89"
        + _pickled(value.tobytes())
        + b"tb"
    )
