"""The bytes of messages, as functions of their lengths and of the number of ranks."""


def sent_by_allreduce(num_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that each rank sends where all ranks sum tensors in a ring.

    2 (R - 1) / R times the tensor, rounded: each rank sends R - 1 of its R parts while
    they are summed, and R - 1 parts of the sum.

    Args:
        num_bytes: Bytes n of the tensor.
        num_ranks: Number of ranks R; 0 bytes for one rank.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", section 3.
    """
    return round(2 * (num_ranks - 1) * num_bytes / num_ranks)


def sent_by_allgather(num_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that a rank's message takes on its way to all other ranks.

    Args:
        num_bytes: Bytes of the message.
        num_ranks: Number of ranks R: the message travels R - 1 times.
    """
    return (num_ranks - 1) * num_bytes
