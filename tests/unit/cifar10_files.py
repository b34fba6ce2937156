"""CIFAR-10's files in their published forms, with a few made-up images."""

import io
import pathlib
import pickle
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
    file = io.BytesIO()
    pickler = pickle._Pickler(file, 2)
    pickler.dispatch = {**pickler.dispatch, bytes: _save_string}
    pickler.dump(value)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def _save_string(pickler: pickle._Pickler, value: bytes) -> None:
    form, code = ("<cB", b"U") if len(value) < 256 else ("<ci", b"T")
    head = struct.pack(form, code, len(value))
    pickler.write(head + value)
