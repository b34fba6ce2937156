"""Checks that all ranks see the same folder."""

import contextlib
import os
import platform
import secrets
import time
from pathlib import Path

from resnet.base.errors import UserError
from resnet.distributed.communicator import AgreedError, Communicator

# A host may remember for so long that a file on NFS doesn't exist (acdirmax is 60 s).
_SECONDS = 90.0
_POLL_SECONDS = 0.5


def check_is_shared(
    model_dir: Path, communicator: Communicator, seconds: float = _SECONDS
) -> None:
    """Refuses a folder that not all ranks see; to be called on all ranks.

    Rank 0 creates an empty file, and the other ranks look for it.

    Args:
        model_dir: Folder of the run, which rank 0 creates if it doesn't exist.
        seconds: Time for which a rank waits for the file to appear, in seconds.

    Raises:
        AgreedError: On all ranks, naming the first one that doesn't see the file.
    """
    name = communicator.broadcast(f".shared-{secrets.token_hex(8)}")
    with communicator.collective_errors():
        if communicator.rank == 0:
            try:
                model_dir.mkdir(parents=True, exist_ok=True)
                (model_dir / name).touch()
            except OSError as error:
                raise UserError(
                    f"{model_dir} must be a folder that can be written to:"
                    f" {os.strerror(error.errno or 0)}."
                    " Free disk space, or check its permissions."
                ) from error
    is_there = _appears(model_dir / name, seconds)
    answers = communicator.allgather((is_there, platform.node()))
    if communicator.rank == 0:
        (model_dir / name).unlink(missing_ok=True)
    for rank, (sees_it, host) in enumerate(answers):
        if not sees_it:
            raise AgreedError(
                "--model_dir must be a folder that all ranks share, since each rank"
                f" saves state of its own in it; rank {rank} on {host} doesn't see in"
                f" {model_dir} what rank 0 on {answers[0][1]} has written there. Name"
                " a folder on a file system that all hosts mount."
            )


def _appears(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        _list_nearest_folder(path)
        if path.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _list_nearest_folder(path: Path) -> None:
    """Lists the folder of a file, or the nearest one above it that exists.

    An NFS client then asks the server what is in it, rather than its own memory.
    """
    for folder in path.parents:
        with contextlib.suppress(OSError):
            os.listdir(folder)
            return
