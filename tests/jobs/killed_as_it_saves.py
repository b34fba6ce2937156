"""A program of the tests: the last rank is killed while it saves its own state.

killed_as_it_saves.py MODEL_DIR

The next job in the same folder resumes, and checks what each rank has restored.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import program, startup


def save_and_be_killed(state, communicator: Communicator, model_dir: Path) -> None:
    """Saves twice; the last rank is killed while it writes the second time."""
    from resnet.checkpoint.manager import CheckpointManager
    from tests import rank_state

    manager = CheckpointManager(state.config, state, communicator)
    rank = communicator.rank

    def save(step: int) -> None:
        rank_state.set_to(state, step, rank)
        manager.save({})
        manager.finish()

    save(5)
    if rank == communicator.num_ranks - 1:
        pattern = f".step-*6.unfinished/rank-{rank:05d}-of-*"
        threading.Thread(
            target=kill_when_there_is,
            args=(model_dir / "checkpoints", pattern),
            daemon=True,
        ).start()
    save(6)


def kill_when_there_is(folder: Path, pattern: str) -> None:
    while not any(folder.glob(pattern)):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str], place: ProcessInfo, communicator: Communicator) -> None:
    model_dir = Path(argv[1])
    startup.start_tensorflow(communicator)
    from resnet.checkpoint.restore import restore_newest
    from tests import rank_state

    state = rank_state.make(model_dir)
    restore_newest(state, model_dir, communicator)
    if state.step == 0:
        save_and_be_killed(state, communicator, model_dir)
    else:
        rank_state.assert_is_of(state, state.step, communicator.rank)
        print(f"resumed as it was after step {state.step}")


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv))
