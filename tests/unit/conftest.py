"""What several tests need: small record sets, and the settings of a short run."""

import dataclasses
import functools
import gc
import hashlib
import io
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import threadpoolctl
from absl import logging as absl_logging
from PIL import Image

from data_prep import worker_processes
from data_prep.records import (
    class_mixing,
    indexing,
    manifest,
    record_index,
    tf_example,
    tfrecord,
)
from data_prep.records.manifest import RecordSet
from resnet.config.config import Config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.runtime import startup
from tests import smallest
from tests.converter_program import (  # noqa: F401 - The fixtures bad and raw.
    bad,
    raw,
    run_jobs_here,
)
from tests.temporary_files import temporary_files  # noqa: F401 - A fixture.

RED_STEP = 18  # Of the numbered set: far more than a JPEG's error.

# The garbage collector would look at the million objects of TensorFlow, and at those of
# the tests, again and again: a tenth of the tests' time.
gc.disable()
# As the programs have it by default. TensorFlow reads it when its first op runs.
_INTER_OP_THREADS = "TF_NUM_INTEROP_THREADS"
# Those that take more than five seconds, many of them waiting.
_LONGEST = {
    "test_evaluator",
    "test_input_pipeline",
    "test_networks",
    "test_recipe_steps",
    "test_stock_network",
    "test_train",
    "test_train_phases",
}
_OBJECTS_BETWEEN_COLLECTIONS = 20_000  # A graph of some layers has as many.
os.environ[_INTER_OP_THREADS] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, which the workers of xdist take in this order.

    Else one worker would still run them when the others have finished.
    """
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


def pytest_pycollect_makemodule() -> None:
    """Imports TensorFlow as the programs do, before a test file imports it.

    Without what only Keras' plots and `fit` need this is shorter, in each worker.
    """
    if "tensorflow" not in sys.modules:
        with startup._hidden(("pandas",)):
            startup.import_tensorflow()


@pytest.fixture(scope="session", autouse=True)
def light_tensorflow() -> Iterator[None]:
    """Turns off what only makes the tests' own process slower.

    That is AutoGraph, which the programs don't use; the search for the line of Python
    that makes an op, for each op of each graph; and NumPy's threads, which wait by
    computing. From here on the garbage collector is on again, for what tests make.
    """
    import tensorflow as tf
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.util import tf_stack

    tf.constant(0)
    del os.environ[_INTER_OP_THREADS]  # Tests are told by what they set alone.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    gc.enable()
    here = tf_stack.extract_stack()

    def stack_of_the_fixture(stacklevel: int = 1) -> Any:
        return here

    with (
        ag_ctx.ControlStatusCtx(status=ag_ctx.Status.DISABLED),
        mock.patch.object(tf_stack, "extract_stack", stack_of_the_fixture),
        threadpoolctl.threadpool_limits(1),
    ):
        yield


@pytest.fixture(autouse=True)
def same_verbosity() -> Iterator[None]:
    """Restores the level of absl's logger.

    Code that sets a verbosity for a while leaves absl's default as the logger's own
    level, at which `caplog` misses what tests after it log.
    """
    logger = absl_logging.get_absl_logger()
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """`_make_config`."""
    return _make_config


def _make_config(
    num_train_examples: int = 500,
    class_names: Sequence[str] = ("a", "b", "c"),
    **given: Any,
) -> Config:
    """Returns the settings of a short run of "digits", other than here if given."""
    settings = {
        "mode": "train",
        "model": smallest.NETWORK,
        "eval_batch_size": 8,
        "train_steps": 100,
        "warmup_steps": 0,
        **given,
    }
    return resolve(digits.DIGITS, settings, num_train_examples, tuple(class_names))


@pytest.fixture(scope="module")
def one_block() -> Iterator[None]:
    """Leaves one block of resnet8, for modules that make and trace many networks."""
    from resnet.models import cifar_resnet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar_resnet, "STAGE_FILTERS", (16,))
        yield


@pytest.fixture(scope="session")
def numbered_set(tmp_path_factory) -> pathlib.Path:
    """A set of 13 training images in files of 5, 4 and 4; not to be changed.

    Example i is of class i % 4, and `numbers_in` tells it by its red.
    """
    folder = tmp_path_factory.mktemp("numbered")
    y, x = np.mgrid[:32, :32]
    images = []
    for number in range(13):
        red = np.full_like(x, RED_STEP * number)
        image = Image.fromarray(np.stack([red, 4 * x, 4 * y], -1).astype(np.uint8))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=100, subsampling=0)
        images.append(file.getvalue())
    labels = [number % 4 for number in range(13)]
    _write_tiny_set(folder, images, labels, "abcd", [5, 4, 4])
    return folder


@pytest.fixture(scope="session")
def numbers_in() -> Callable[[np.ndarray], list[int]]:
    """A function that tells which of the numbered set normalized images show."""

    def numbers_in(images: np.ndarray) -> list[int]:
        red = 255 * (images[..., 0] * 0.229 + 0.485)  # ImageNet's deviation and mean.
        return np.round(red.mean((1, 2)) / RED_STEP).astype(int).tolist()

    return numbers_in


@pytest.fixture(scope="session")
def put_record_in() -> Callable[..., Any]:
    """A function that puts other bytes in the place of a record.

    It returns `RecordFiles` whose example lies in a new file, from byte 5 to its end.
    """

    def put_record_in(
        folder: pathlib.Path, records: Any, example: int, content: bytes
    ) -> Any:
        path = folder / f"record-{len(records.paths)}"
        path.write_bytes(b"other" + content)
        files = records.file_of_example.copy()
        index = records.index.copy()
        files[example], index["offset"][example] = len(records.paths), 5
        return dataclasses.replace(
            records,
            paths=(*records.paths, str(path)),
            file_of_example=files,
            index=index,
        )

    return put_record_in


@pytest.fixture
def put_record(tmp_path, put_record_in) -> Callable[..., Any]:
    """`put_record_in` the folder of the test: (records, example, content)."""
    return functools.partial(put_record_in, tmp_path)


@pytest.fixture(scope="session")
def write_tiny_set() -> Callable[..., None]:
    """A function that writes one split of a set, `_write_tiny_set`."""
    return _write_tiny_set


@pytest.fixture(scope="session")
def read_split() -> Callable[[RecordSet, str], list[tuple[int, bytes]]]:
    """A function that reads the records of a split by the index, `_read_split`."""
    return _read_split


@pytest.fixture
def one_process_is_this(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the jobs of a single worker process in the test's own process."""
    start_workers = worker_processes.run

    def run(function: Any, jobs: Any, num_processes: int, take_result: Any) -> None:
        runner = run_jobs_here if num_processes == 1 else start_workers
        runner(function, jobs, num_processes, take_result)

    monkeypatch.setattr(worker_processes, "run", run)


@pytest.fixture
def index_cache(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A folder for the indexes of record sets, instead of the user's."""
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def forbid_scans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call no record file can be scanned any more."""
    return lambda: monkeypatch.setattr(indexing.tf_example, "scan_file", None)


def _read_split(record_set: RecordSet, split_name: str) -> list[tuple[int, bytes]]:
    """Returns label, counted from 0, and image of each record, in order."""
    contents = record_set.manifest
    split = contents.splits[split_name]
    offsets = record_index.read_index(record_set, split)["offset"]
    found = []
    for shard, offset in zip(
        record_index.shard_of_example(split), offsets, strict=True
    ):
        path = record_set.records_dir / split.shards[shard].path
        features = tf_example.parse_example(tfrecord.read_at(path, int(offset)))
        label = tf_example.integer_of(features, contents.label_key)
        encoded = tf_example.bytes_of(features, contents.image_key)
        found.append((label - contents.first_label, encoded))
    return found


def _write_tiny_set(
    folder: pathlib.Path,
    images: Sequence[bytes],
    labels: Sequence[int],
    class_names: Sequence[str],
    shard_sizes: Sequence[int],
    split: str = "train",
) -> None:
    """Writes record files, offsets and manifest of one split, or adds it to a set.

    Images are encoded, labels count from 0, and shard sizes are numbers of records.
    """
    (folder / split).mkdir()
    contents = []
    bounds = [0, *itertools.accumulate(shard_sizes)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        name = manifest.shard_name(split, number, len(shard_sizes))
        content = b""
        offsets: list[int] = []
        for index in range(begin, end):
            offsets.append(len(content))
            with Image.open(io.BytesIO(images[index])) as image:
                width, height = image.size
            content += tfrecord.frame_record(
                tf_example.image_example(
                    images[index],
                    height=height,
                    width=width,
                    labels=[tf_example.FIRST_LABEL + labels[index]],
                    class_names=[class_names[labels[index]]],
                    filename=f"{index}.jpg",
                )
            )
        (folder / split / name).write_bytes(content)
        contents.append(
            class_mixing.ShardContent(
                path=f"{split}/{name}",
                num_bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                offsets=offsets,
                labels=np.array(labels[begin:end]),
            )
        )
    written = class_mixing.write_split(folder, split, contents, len(class_names))
    record_set = manifest.find(str(folder))
    others = {} if record_set is None else record_set.manifest.splits
    (folder / manifest.FILE_NAME).unlink(missing_ok=True)
    manifest.write(
        manifest.Manifest(
            class_names=tuple(class_names),
            first_label=tf_example.FIRST_LABEL,
            splits={**others, split: written},
            source={"written_by": "a test"},
        ),
        folder,
    )


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """The texts that are logged, as information or warnings."""
    texts: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(
            absl_logging, level, lambda form, *v: texts.append(form % v)
        )
    return texts
