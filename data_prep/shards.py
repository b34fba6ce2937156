"""Writes record files: one, or many by several processes."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import process

import numpy as np
import numpy.typing as npt

from data_prep import atomic_files, images, manifest, tfrecord_format
from data_prep.errors import UserError
from data_prep.sources import SourceImage

LEAST_EXAMPLES_PER_SHARD = 256  # Fewer make many small files for nothing.
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_WAKE_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """One shard that is to be written.

    Attributes:
        root: Folder of the converted set.
        path: Posix path of the record file, relative to `root`.
        images: The pictures with their labels, in the order of the records.
    """

    root: str
    path: str
    images: Sequence[tuple[SourceImage, int]]


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """One shard that was written.

    Attributes:
        shard: Its entry in the manifest.
        offsets: Where each record begins in the file, in bytes, `[num_records]`, int64.
        num_converted: Pictures whose bytes are not those of their file.
    """

    shard: manifest.Shard
    offsets: npt.NDArray[np.int64]
    num_converted: int


def default_num_shards(num_examples: int, most: int) -> int:
    """Returns how many shards to make of a split: up to `most`, none of them tiny."""
    return max(1, min(most, num_examples // LEAST_EXAMPLES_PER_SHARD))


def split_evenly(num_examples: int, num_shards: int) -> list[range]:
    """Returns each shard's examples, contiguous, the larger shards first.

    Sizes differ by at most one.

    Args:
        num_examples: At least 0.
        num_shards: At least 1.
    """
    size, num_larger = divmod(num_examples, num_shards)
    starts = [index * size + min(index, num_larger) for index in range(num_shards + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def write_shard(
    root: str | os.PathLike[str],
    path: str,
    labelled_images: Iterable[tuple[SourceImage, int]],
) -> WrittenShard:
    """Writes one record file; it gets its name when it is whole.

    Args:
        root: Folder of the converted set.
        path: Posix path of the file, relative to `root`; its folder must exist.
        labelled_images: The pictures with their labels, in the order of the records;
            one at a time is in memory.

    Raises:
        UserError: If a picture can't be decoded.
        OSError: If a picture can't be read or the shard can't be written.
    """
    offsets = []
    num_bytes = 0
    num_converted = 0
    digest = hashlib.sha256()
    with atomic_files.atomic_file(pathlib.Path(root, path)) as file:
        for source, label in labelled_images:
            image = images.to_jpeg(pathlib.Path(source.path).read_bytes(), source.path)
            example = tfrecord_format.image_example(
                image.data,
                height=image.height,
                width=image.width,
                label=label,
                class_name=source.class_name,
                filename=source.filename,
            )
            record = tfrecord_format.frame_record(example)
            file.write(record)
            digest.update(record)
            offsets.append(num_bytes)
            num_bytes += len(record)
            num_converted += image.converted
    return WrittenShard(
        manifest.Shard(path, len(offsets), num_bytes, digest.hexdigest()),
        np.array(offsets, np.int64),
        num_converted,
    )


def write_shards(
    jobs: Sequence[ShardJob],
    num_processes: int,
    report_records: Callable[[int], None],
) -> list[WrittenShard]:
    """Writes shards by several processes; the files don't depend on how many.

    An error or an interruption ends all processes at once. It may leave temporary
    files (`atomic_files.remove_leftovers`). Signals are held while a process starts, so
    this must be called from the main thread.

    Args:
        jobs: The shards to write.
        num_processes: At least 1. Each one writes whole shards.
        report_records: Called with the number of records of each shard that is done.

    Returns:
        What was written, in the order of `jobs`.

    Raises:
        UserError: If a picture can't be decoded or a process died.
        OSError: If a picture can't be read or a shard can't be written.
    """
    written: dict[int, WrittenShard] = {}
    running: dict[concurrent.futures.Future[WrittenShard], int] = {}
    strangers = set(multiprocessing.active_children())

    def wait_for_one() -> None:
        done: set[concurrent.futures.Future[WrittenShard]] = set()
        while not done:
            # Without a time limit, a signal that another thread took would not be
            # handled until a shard is done: this thread has to wake up for it.
            done = concurrent.futures.wait(
                running,
                timeout=_WAKE_SECONDS,
                return_when=concurrent.futures.FIRST_COMPLETED,
            ).done
        for future in done:
            index = running.pop(future)
            written[index] = future.result()
            report_records(written[index].shard.num_records)

    with concurrent.futures.ProcessPoolExecutor(
        num_processes,
        # Forking a process that has threads, as NumPy's, can hang.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
    ) as executor:
        try:
            for index, job in enumerate(jobs):
                # No job waits in the executor's pipe: with one in it, the executor of
                # Python 3.10 hangs when a worker dies (python/cpython#94777).
                if len(running) == num_processes:
                    wait_for_one()
                with _interrupts_held():
                    running[executor.submit(_write_job, job)] = index
            while running:
                wait_for_one()
        except BaseException as error:
            for worker in set(multiprocessing.active_children()) - strangers:
                worker.kill()  # It has nothing to clean up.
            if isinstance(error, process.BrokenProcessPool):
                raise UserError(
                    "a worker process died, perhaps for lack of memory; start again"
                    f" with a smaller --num_processes than {num_processes}"
                ) from error
            raise
    return [written[index] for index in range(len(jobs))]


def _write_job(job: ShardJob) -> WrittenShard:
    return write_shard(job.root, job.path, job.images)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM; a process that is started meanwhile never gets them.

    In the middle of a start they would leave a worker that nobody knows of, and a
    terminal's Ctrl-C goes to all processes: each worker would print a traceback.
    """
    held: list[int] = []
    # Processes inherit what is blocked. But another thread of this one may still take
    # a signal, and the handler then runs here all the same: hence the second measure.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in _INTERRUPTS
    }
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _prepare_worker() -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Ends this worker when its parent is gone, killed; nobody else would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
