"""The numbers of nodes whose ranks divide a global batch evenly."""

from collections.abc import Sequence

from resnet.base.errors import UserError

MOST_NODES = 4096


def dividing(global_batch_size: int, ranks_per_node: int) -> list[int]:
    """Returns all numbers of nodes up to `MOST_NODES` that divide a batch.

    Args:
        global_batch_size: The number of images in a step.
        ranks_per_node: The number of ranks on each node.
    """
    return [
        number
        for number in range(1, MOST_NODES + 1)
        if global_batch_size % (number * ranks_per_node) == 0
    ]


def shown(numbers: Sequence[int]) -> list[int]:
    """Returns about one number for each power of two, among numbers that rise."""
    found = []
    for power in range(MOST_NODES.bit_length()):
        below = [number for number in numbers if number <= 1 << power]
        found += below[-1:]
    return sorted(set(found))


def check(
    numbers: Sequence[int], global_batch_size: int, ranks_per_node: int, flag: str
) -> None:
    """Refuses numbers of nodes that don't divide a batch.

    Args:
        numbers: The numbers of nodes.
        global_batch_size: The number of images in a step.
        ranks_per_node: The number of ranks on each node.
        flag: The flag that has the numbers, for the error.

    Raises:
        UserError: With the nearest numbers that do.
    """
    possible = dividing(global_batch_size, ranks_per_node)
    if not possible:
        raise UserError(
            f"--ranks_per_node must divide the global batch of {global_batch_size:,};"
            f" got {ranks_per_node}. Choose a divisor, or another --train_batch_size."
        )
    for number in numbers:
        if not 1 <= number <= MOST_NODES:
            raise UserError(f"{flag} must be from 1 to {MOST_NODES:,}; got {number:,}.")
        if number not in possible:
            below = max((one for one in possible if one < number), default=None)
            above = min((one for one in possible if one > number), default=None)
            nearest = [f"{one:,}" for one in (below, above) if one]
            raise UserError(
                f"the ranks must divide the global batch of {global_batch_size:,}"
                f" evenly; {number:,} nodes of {ranks_per_node} rank(s) don't. The"
                f" nearest numbers of nodes are {' and '.join(nearest)}."
            )
