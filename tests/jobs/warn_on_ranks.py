"""Logs warnings after the start of a job, some of them on one rank only."""

import sys
import time

from absl import logging

from resnet.runtime import program, startup


def main(argv, process, communicator):
    startup.join_job(process, communicator, stall_seconds=60.0)
    rank = communicator.rank
    logging.info("information of rank %d", rank)
    logging.warning("a warning of all ranks")
    for _ in range(3):
        logging.warning("a warning of rank %d, which has %s", rank, "x" * 5000)
    if rank == 1:
        logging.error("an error of rank 1")
    time.sleep(0.5)  # The watchdogs connect.
    communicator.allgather(None)


sys.exit(program.run(main, sys.argv))
