"""What a checkpoint of ResNet-50 costs a training, and how fast it is found again.

python eval/benchmarking/checkpoint_cost.py

saves ten times, in the folder for temporary files, and prints medians and ranges: the
time for which a step stops, by how much the update after it takes longer, which leaves
what is being saved as it is, the processor time that the thread takes which writes, and
the time to find, verify and load the newest checkpoint.
"""

import pathlib
import statistics
import sys
import tempfile
import time

if __package__ in (None, ""):  # Run by its path: the packages lie two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from data_prep import errors
from resnet.config.resolve import resolve
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.recipes import imagenet
from resnet.runtime import startup

ROUNDS = 10


def main() -> None:
    """Measures, and prints what it finds."""
    communicator = Communicator(ProcessInfo())
    startup.start_tensorflow(communicator)
    import tensorflow as tf

    from resnet.checkpoint import tensors
    from resnet.checkpoint.manager import CheckpointManager
    from resnet.config.step_settings import StepSettings
    from resnet.train_state import TrainState

    stops, copies, threads, loads = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        recipe = imagenet.TPU_90EP_24K
        classes = tuple(f"class{number}" for number in range(1000))
        config = resolve(
            recipe, {"model_dir": folder}, recipe.num_train_examples, classes
        )
        state = TrainState(config)
        manager = CheckpointManager(config, state, communicator)
        zeros = [tf.zeros_like(one) for one in state.trainable_variables]
        zero = tf.constant(0.0)
        unmoved = StepSettings(zero, zero, zero, 0.0)
        move = tf.function(lambda: state.optimizer.apply(zeros, unmoved))

        def timed_move() -> float:
            began = time.monotonic()
            move()
            return time.monotonic() - began

        timed_move()  # The first one makes the graph.
        for number in range(2 * ROUNDS):
            state.step += 1
            usual = timed_move()
            all_threads, this_thread = time.process_time(), time.thread_time()
            began = time.monotonic()
            manager.save({})
            stops.append(time.monotonic() - began)
            this_thread = time.thread_time() - this_thread
            if number % 2:
                copies.append(timed_move() - usual)
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
    print(f"a step stops for            {spread(stops)}")
    print(f"the next update takes more  {spread(copies)}")
    print(f"the thread that writes it   {spread(threads)} of a processor")
    print(f"found, verified and loaded  {spread(loads)}")
    share = sum(map(statistics.median, (stops, copies, threads))) / 60
    print(f"one a minute costs a rank of one core {share:.2%} of its time")


def spread(seconds: list[float]) -> str:
    """Returns the median and the range."""
    median, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median:.3f} s ({least:.3f} to {most:.3f}, n={len(seconds)})"


def run() -> None:
    """Runs the program."""
    errors.run(main)


if __name__ == "__main__":
    run()
