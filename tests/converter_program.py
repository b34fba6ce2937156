"""The converter as its tests call it, and images for it."""

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from data_prep import imagenet_to_tfrecords, worker_processes
from data_prep.records import verified
from tests import in_process, shared_memory
from tests.in_process import Done

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = REPOSITORY / "data_prep" / "imagenet_to_tfrecords.py"
CLASSES = ("n01", "n02", "n03")


def encoded_image(seed: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 7 + seed, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def write(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def arguments(raw, records, *more: str) -> list[str]:
    return [f"--raw_data_dir={raw}", f"--local_scratch_dir={records}", *more]


def convert(raw, records, *more: str, **options) -> subprocess.CompletedProcess[str]:
    return run(*arguments(raw, records, *more), **options)


def run(
    *flags: str, program: tuple[str, ...] = (str(PROGRAM),), **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *flags],
        cwd=options.pop("cwd", "/"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **options,
    )


@contextlib.contextmanager
def started_conversions() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Gives `start(*words)`, which starts a program in a process group of its own.

    In the end those that still run are killed, with their workers, and the semaphores
    that killed ones have left are removed.
    """
    earlier = shared_memory.all_names()
    started: list[subprocess.Popen[str]] = []

    def start(*words: Any) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(program)
        return program

    try:
        yield start
    finally:
        for program in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.communicate()  # Also its workers have closed their ends.
        shared_memory.remove_unused(shared_memory.all_names("sem.mp-") - earlier)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Returns the function of `started_conversions`."""
    with started_conversions() as function:
        yield function


def run_jobs_here(
    function: Callable, jobs: Iterable, num_processes: int, take_result: Callable
) -> None:
    """Does what `worker_processes.run` does, in this process."""
    for job in jobs:
        take_result(function(job))


def convert_here(raw, records, *more: str) -> Done:
    """Converts as `convert` does, in this process and without worker processes."""
    return run_here(*arguments(raw, records, *more))


def run_here(*flags: str) -> Done:
    """Runs the program in this process and without worker processes."""
    with mock.patch.object(worker_processes, "run", run_jobs_here):
        return in_process.run(imagenet_to_tfrecords, *flags)


def content(root: pathlib.Path) -> dict[str, bytes]:
    """Each file's bytes, hidden ones included, but for the states of files."""
    return {
        os.path.relpath(os.path.join(folder, name), root): pathlib.Path(
            folder, name
        ).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
        if name != verified.FILE_NAME
    }


@pytest.fixture
def raw(tmp_path) -> pathlib.Path:
    """A raw folder with 18 train and 4 validation images of 3 classes."""
    root = tmp_path / "raw"
    for label, name in enumerate(CLASSES):
        for index in range(6):
            data = encoded_image(10 * label + index)
            write(root / "train" / name / f"{name}_{index}.JPEG", data)
    write(root / "train" / "n01" / "n01_0.JPEG", encoded_image(0, "PNG"))
    write(root / "train" / "n02" / "n02_3.JPEG", encoded_image(13, mode="CMYK"))
    write(root / "train" / "n02" / "notes.txt", b"")
    for index, name in enumerate(("n03", "n01", "n03", "n02")):
        write(root / "validation" / name / f"v{index}.JPEG", encoded_image(30 + index))
    return root


@pytest.fixture
def bad(raw) -> pathlib.Path:
    """An image of `raw` that is truncated."""
    path = raw / "train" / "n02" / "n02_1.JPEG"
    path.write_bytes(encoded_image(11)[:-9])
    return path
