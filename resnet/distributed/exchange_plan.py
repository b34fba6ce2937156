"""Describes the exchange of gradients of a run that is planned. Needs no TensorFlow."""

from collections.abc import Sequence

from resnet.compression import message_sizes, vectors
from resnet.config.compression import CompressionSettings

_WAYS = {"layerwise": "variable by variable", "entiremodel": "as one vector"}


def describe(
    compression: CompressionSettings, num_values: Sequence[int], num_ranks: int
) -> str:
    """Returns what the ranks send in a step, compressed and dense.

    Args:
        compression: The settings of compression, which is on.
        num_values: Number of values of each variable.
        num_ranks: Number of ranks.
    """
    names = [str(number) for number in range(len(num_values))]
    sizes = vectors.sizes(names, num_values, compression.compress).values()
    coded, dense = message_sizes.of_step(compression, sizes), 4 * sum(num_values)
    text = f"{compression.method} {_WAYS[compression.compress]}:"
    text += f" {_megabytes(dense)} of gradients a step become"
    if coded is None:
        text += " a message whose size depends on them"
    else:
        about = " about" if compression.method == "topk" else ""
        text += f"{about} {_megabytes(coded)}, a factor of {dense / coded:.3g}"
    if num_ranks == 1:
        return f"{text}. One rank sends nothing."
    return f"{text}. {_sent(compression, coded, dense, num_ranks)}"


def _sent(
    compression: CompressionSettings, coded: int | None, dense: int, num_ranks: int
) -> str:
    """Returns which exchange is used, and what each rank sends.

    Args:
        compression: The settings of compression.
        coded: Bytes of a rank's coded gradients; None if they depend on the gradients.
        dense: Bytes of the gradients.
        num_ranks: Number of ranks, at least 2.
    """
    dense_sent = message_sizes.sent_by_allreduce(dense, num_ranks)
    instead = f"instead of {_megabytes(dense_sent)} without compression (all-reduce)"
    if coded is not None and compression.method == "randomk":
        sent = message_sizes.sent_by_allreduce(coded, num_ranks)
        way = "The ranks sum the same coordinates (all-reduce)"
        return f"{way}: each of {num_ranks:,} sends {_megabytes(sent)} {instead}."
    way = "Each message goes to all other ranks (all-gather)"
    if coded is None:
        most = _megabytes(dense_sent // (num_ranks - 1))
        return (
            f"{way}: each of {num_ranks:,} ranks sends its message {num_ranks - 1:,}"
            f" times, {instead}. That is less if a message has less than {most}."
        )
    sent = message_sizes.sent_by_allgather(coded, num_ranks)
    text = f"{way}: each of {num_ranks:,} ranks sends {_megabytes(sent)} {instead}"
    return text + (", which is more." if sent > dense_sent else ".")


def _megabytes(num_bytes: int) -> str:
    """Returns bytes in MB, 10^6 bytes, or in kB if they are fewer."""
    if num_bytes >= 1e6:
        return f"{num_bytes / 1e6:,.1f} MB"
    return f"{num_bytes / 1e3:,.1f} kB"
