"""The memory of tensors, in processes of their own: each chooses its allocator once."""

import sys

from tests.processes import completed

_PROGRAM = """
import resource
from resnet.runtime import startup
startup.import_tensorflow()
import tensorflow as tf
images = tf.zeros([2**24])  # 64 MiB, 16,384 pages: more than malloc ever keeps.
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def add():
    before = faults()
    (images + 1.0).numpy()
    return faults() - before
add()
print(max(add() for _ in range(5)))
"""


def _page_faults(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", _PROGRAM]
    done = completed(command)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_step_computes_in_the_memory_of_the_step_before(monkeypatch):
    assert _page_faults(monkeypatch) < 1000


def test_the_allocator_that_the_user_chooses_stays(monkeypatch):
    # By malloc, each result is new memory, in pages of 4 KiB or huge ones of 2 MiB.
    assert _page_faults(monkeypatch, TF_CPU_ALLOCATOR_USE_BFC="0") >= 32
