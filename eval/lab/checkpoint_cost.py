"""Measures the cost of saving and of loading a checkpoint of ResNet-50.

python eval/lab/checkpoint_cost.py
TMPDIR=/scratch python eval/lab/checkpoint_cost.py

Saves 20 checkpoints in a temporary folder, here one in /scratch, and prints
medians and ranges of: the time that training is blocked by a save; the extra
time of the next update, which must not change the values being saved; the
processor time of the thread that writes; and the time to find, verify and load
the newest checkpoint.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from eval.benchmarking.jobs import spread
from resnet.base import cli, program
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

ROUNDS = 10
FLAGS: cli.Groups = ()


def main(argv: Sequence[str]) -> int:
    """Measures and prints the costs."""
    cli.parse(argv, __doc__, FLAGS)
    communicator = Communicator(ProcessInfo())
    startup.start_tensorflow(communicator)
    import tensorflow as tf

    from resnet.checkpoint import tensors
    from resnet.checkpoint.manager import CheckpointManager
    from resnet.config.phases import StepSettings
    from resnet.optim.train_state import TrainState

    stops, copies, threads, loads = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        recipe, classes = imagenet.TPU_90EP_24K, tuple(map(str, range(1000)))
        examples = recipe.num_train_examples
        config = resolve(recipe, {"model_dir": folder}, examples, classes)
        state = TrainState(config)
        manager = CheckpointManager(config, state, communicator)
        zeros = [tf.zeros_like(variable) for variable in state.trainable_variables]
        zero = tf.constant(0.0)
        zero_settings = StepSettings(zero, zero, zero, 0.0)
        update = tf.function(lambda: state.optimizer.apply(zeros, zero_settings))

        def time_update() -> float:
            began = time.monotonic()
            update()
            return time.monotonic() - began

        time_update()  # The first call traces the graph.
        for number in range(2 * ROUNDS):
            state.step += 1
            usual = time_update()
            all_threads, this_thread = time.process_time(), time.thread_time()
            began = time.monotonic()
            manager.save({})
            stops.append(time.monotonic() - began)
            this_thread = time.thread_time() - this_thread
            if number % 2:
                copies.append(time_update() - usual)
                manager.finish()
            else:
                manager.finish()
                threads.append(time.process_time() - all_threads - this_thread)
            began = time.monotonic()
            tensors.load_newest(pathlib.Path(folder))
            loads.append(time.monotonic() - began)
        num_bytes = sum(
            file.stat().st_size
            for file in pathlib.Path(folder, "checkpoints").rglob("*")
            if file.is_file()
        )
    megabytes = num_bytes / config.keep_checkpoints / 1e6
    print(f"checkpoint                  {megabytes:.0f} MB")
    print(f"training is blocked for     {spread(stops, unit=' s')}")
    print(f"extra time of next update   {spread(copies, unit=' s')}")
    print(f"processor time of writing   {spread(threads, unit=' s')}")
    print(f"find, verify and load       {spread(loads, unit=' s')}")
    fraction = sum(map(statistics.median, (stops, copies, threads))) / 60
    print(f"one per minute costs a rank with one core {fraction:.2%} of its time")
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
