"""A program of the tests: rank 1 alone runs into something; argument: what."""

import sys

from resnet.base.errors import UserError
from resnet.runtime import program


def main(argv, place, communicator):
    with communicator.collective_errors():
        if argv[1] == "agreed" and place.rank == 1:
            raise UserError("the disk of rank 1 must hold the records; it is empty")
    if argv[1] == "user" and place.rank == 1:
        raise UserError("rank 1 has failed")
    if argv[1] == "bug" and place.rank == 1:
        raise IndexError("a bug of rank 1")
    communicator.allgather(None)  # Where the others would wait for ever.
    communicator.allgather(None)


sys.exit(program.run(main, sys.argv))
print("not reached")
sys.exit(0)
