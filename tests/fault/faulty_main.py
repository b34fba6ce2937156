"""The training program, in which one rank meets a fault when it reads a batch.

faulty_main.py FAULT RANK STEP [flags of resnet_main.py]
"""

import os
import resource
import sys
import time
from typing import Any

import numpy as np

from resnet import resnet_main
from resnet.base import program
from resnet.hardware.placement import find_process_info


def raise_error(batch: Any) -> Any:
    raise IndexError("a bug of this rank")


def give_nan(batch: Any) -> Any:
    import tensorflow as tf

    return batch._replace(images=tf.fill(tf.shape(batch.images), np.nan))


def hang(batch: Any) -> Any:
    time.sleep(10_000)


def run_out_of_memory(batch: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
    return np.ones(1 << 40, np.uint8)


def eat_memory(batch: Any) -> Any:
    """Until the kernel kills the process, or 4 GiB are gone."""
    eaten = []
    while len(eaten) < 64:
        eaten.append(np.ones(1 << 26, np.uint8))
    raise AssertionError("nobody has stopped it")


def exit_silently(batch: Any) -> Any:
    os._exit(0)


def drift(batch: Any) -> Any:
    import gc

    import keras

    for one in gc.get_objects():
        if isinstance(one, keras.Model):
            one.trainable_variables[0].value.assign_add(
                1e-6 * np.ones(one.trainable_variables[0].shape, np.float32)
            )
    return batch


FAULTS = {
    "bug": raise_error,
    "nan": give_nan,
    "hang": hang,
    "memory": run_out_of_memory,
    "eat": eat_memory,
    "exit": exit_silently,
    "drift": drift,
}


def main() -> None:
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    del sys.argv[1:4]
    if find_process_info(os.environ).rank == rank:
        patch(FAULTS[fault], step)
    sys.exit(program.run(resnet_main.main))


def patch(fault: Any, step: int) -> None:
    """Lets the fault happen to the batch of a step; TensorFlow is not imported yet."""
    from resnet.runtime import startup

    start = startup.start_tensorflow

    def start_and_patch(communicator: Any) -> None:
        start(communicator)
        from resnet.data import batches

        read = batches.Batches.__next__
        num_read = 0

        def read_or_fail(self: Any) -> Any:
            nonlocal num_read
            num_read += 1
            batch = read(self)
            return fault(batch) if num_read == step else batch

        batches.Batches.__next__ = read_or_fail  # type: ignore[method-assign]

    startup.start_tensorflow = start_and_patch


main()
