"""A program of the tests: ranks with state of their own save and restore it.

own_state_of_ranks.py MODEL_DIR OUTPUT SCENARIO

What rank R finds is written to OUTPUT-R.json.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from resnet.checkpoint.step_dirs import saved_steps
from resnet.config.resolve import resolve
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.recipes import digits
from resnet.runtime import program, startup

NAME = "residual/stem/kernel"
NUM_VALUES = 100_000


def own_values(rank: int, step: int) -> np.ndarray:
    """What a rank's own state is after a step."""
    return np.random.default_rng([rank, step]).normal(size=NUM_VALUES)


def make_state(model_dir: Path):
    """A state of a tiny network, to which the ranks' own variable is added."""
    import keras
    import tensorflow as tf

    from resnet import models
    from resnet.models import layers
    from resnet.train_state import TrainState

    inputs = keras.Input((32, 32, 3))
    x = layers.ConvNorm(2, 1, 8, 0.9, 0, "one")(inputs)
    network = keras.Model(inputs, layers.Classifier(3, 0, "classifier")(x))
    models.build = lambda *_: network
    settings = {
        "model_dir": str(model_dir),
        "keep_checkpoints": 100,
        "checkpoint_every": "1000steps",
        "train_steps": 100,
        "warmup_steps": 0,
    }
    recipe = digits.DIGITS
    state = TrainState(resolve(recipe, settings, 500, ("a", "b", "c")))
    state.rank_variables[NAME] = tf.Variable(np.zeros(NUM_VALUES, np.float32))
    return state


def set_to(state, step: int, rank: int) -> None:
    """Gives all variables the values that they have after a step."""
    state.step = step
    for number, variable in enumerate(state.tensors().values()):
        values = np.random.default_rng([number, step]).normal(size=variable.shape)
        variable.assign(values.astype(np.float32))
    for number, variable in enumerate(state.batch_norm_averages):
        variable.assign(np.full(variable.shape, rank + number, np.float32))
    state.rank_variables[NAME].assign(own_values(rank, step).astype(np.float32))


def save_some(state, communicator: Communicator, model_dir: Path) -> dict:
    """Saves one by one, then in quick succession, then with a rank's disk full."""
    from resnet.checkpoint.manager import CheckpointManager
    from resnet.checkpoint.restore import restore_newest

    rank, found = communicator.rank, {}
    restore_newest(state, model_dir, communicator)
    manager = CheckpointManager(state.config, state, communicator)

    def save(step: int) -> None:
        set_to(state, step, rank)
        manager.save({})

    save(5)
    manager.finish()
    found["first"] = saved_steps(model_dir)
    for step in range(6, 13):  # Ranks that are not equally fast.
        save(step)
        time.sleep(0.002 * ((rank + step) % 3))
    manager.finish()
    found["in succession"] = saved_steps(model_dir)
    last = communicator.num_ranks - 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    save(20)
    manager.close()
    found["disk full"] = saved_steps(model_dir)
    found["error"] = manager._writer._error
    communicator.allgather(None)
    if rank == last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    save(30)
    manager.finish()
    found["then"] = saved_steps(model_dir)
    return found


def resume(state, communicator: Communicator, model_dir: Path) -> dict:
    """Restores, and compares bit for bit with what was saved."""
    from resnet.checkpoint.restore import restore_newest

    seen = {}

    def take_mean(state, files, communicator) -> None:
        seen["num_ranks"] = files.num_ranks
        total = np.zeros(NUM_VALUES)
        for tensors in files:
            total += tensors[NAME]
        mean = total / files.num_ranks
        state.rank_variables[NAME].assign(mean.astype(np.float32))

    restore_newest(state, model_dir, communicator, take_mean)
    step, rank = state.step, communicator.rank
    own = state.rank_variables[NAME].numpy()
    if seen:
        ranks = range(seen["num_ranks"])
        values = [own_values(one, step).astype(np.float32) for one in ranks]
        expected = (sum(map(np.float64, values)) / len(values)).astype(np.float32)
    else:
        expected = own_values(rank, step).astype(np.float32)
    averages = [one.numpy() for one in state.batch_norm_averages]
    is_same = True
    for number, (name, variable) in enumerate(state.tensors().items()):
        values = np.random.default_rng([number, step]).normal(size=variable.shape)
        if "moving" not in name:
            is_same &= np.array_equal(variable.numpy(), values.astype(np.float32))
    return {
        "step": step,
        "own state is the same": bool(np.array_equal(own, expected)),
        "weights are the same": bool(is_same),
        "averages": [float(one.flat[0]) for one in averages],
        "saved by": seen.get("num_ranks"),
    }


def be_killed(state, communicator: Communicator, model_dir: Path) -> dict:
    """Saves twice; the last rank is killed while it writes the second time."""
    from resnet.checkpoint.manager import CheckpointManager
    from resnet.checkpoint.restore import restore_newest

    restore_newest(state, model_dir, communicator)
    manager = CheckpointManager(state.config, state, communicator)
    set_to(state, 5, communicator.rank)
    manager.save({})
    manager.finish()
    rank, last = communicator.rank, communicator.num_ranks - 1

    def kill_when_it_writes() -> None:
        pattern = f".step-*6.unfinished/rank-{rank:05d}-of-*"
        while not any((model_dir / "checkpoints").glob(pattern)):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == last:
        threading.Thread(target=kill_when_it_writes, daemon=True).start()
    set_to(state, 6, rank)
    manager.save({})
    manager.finish()
    return {}


SCENARIOS = {"save": save_some, "resume": resume, "killed": be_killed}


def main(argv: list[str], place: ProcessInfo, communicator: Communicator) -> None:
    model_dir, output, scenario = Path(argv[1]), argv[2], argv[3]
    if scenario == "elsewhere":  # As on hosts that don't share a file system.
        model_dir, scenario = model_dir / f"rank{place.rank}", "resume"
    startup.start_tensorflow(communicator)
    state = make_state(model_dir)
    found = SCENARIOS[scenario](state, communicator, model_dir)
    Path(f"{output}-{place.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(program.run(main))
