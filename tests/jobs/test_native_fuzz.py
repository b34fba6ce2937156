"""Compiled ops where memory is short, and on hostile inputs under sanitizers."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from resnet import native
from tests.processes import completed

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def test_no_input_misuses_memory_or_gives_other_values(tmp_path):
    words = ["make", "-f", "tests/native/Makefile", f"BUILD={tmp_path}", "CASES=5000"]
    done = completed(words, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5000 cases, no failure" in done.stdout


@pytest.fixture
def little_memory() -> Iterator[None]:
    """The process can map 32 MB more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + 2**25
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


VALUES_OF_64_MB = tf.zeros([2**24])


def test_scratch_memory_that_is_not_there_is_an_error(little_memory):
    # TensorFlow's allocator waits for ten seconds.
    with pytest.raises(tf.errors.ResourceExhaustedError, match="more memory than it"):
        native.ops().resnet_topk_threshold(VALUES_OF_64_MB, tf.constant(5, tf.int64))
