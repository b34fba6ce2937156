"""Jobs for tests: a rank with two threads."""

from typing import Any

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.runtime.job import Job


def job(communicator: Any = None, signals: Any = None) -> Job:
    """Returns the job of a rank, by default of one that is alone."""
    communicator = communicator or Communicator(ProcessInfo())
    return Job(communicator, Threads((0, 1), 1, 1), signals)
