"""Reads a file once for each of its bytes that is damaged."""

from collections.abc import Callable
from pathlib import Path

from resnet.base.errors import UserError


def assert_most_are_refused(
    path: Path, read: Callable[[Path], object], step: int
) -> None:
    """Checks that a damaged byte, one each `step`, is a UserError or isn't read."""
    whole, num_refused = path.read_bytes(), 0
    places = range(0, len(whole), step)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            read(path)
        except UserError:
            num_refused += 1
    assert num_refused > len(places) / 2
