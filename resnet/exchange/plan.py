"""Describes the exchange of gradients of a run that is planned. Needs no TensorFlow."""

import math
from collections.abc import Sequence

from resnet.config.compression import SUMMED_METHODS, CompressionSettings
from resnet.exchange.codecs import message_sizes, vectors

_WAYS = {"layerwise": "variable by variable", "entiremodel": "as one vector"}


def describe(
    compression: CompressionSettings, shapes: Sequence[Sequence[int]], num_ranks: int
) -> str:
    """Returns what the ranks send in a step, compressed and dense.

    Args:
        compression: The settings of compression, which is on.
        shapes: Shape of each variable.
        num_ranks: Number of ranks.
    """
    dense = 4 * sum(math.prod(shape) for shape in shapes)
    coded = _coded_bytes(compression, shapes)
    text = f"{compression.method} {_WAYS[compression.compress]}:"
    text += f" {_megabytes(dense)} of gradients a step become"
    if coded is None:
        text += " a message whose size depends on them"
    else:
        about = " about" if compression.method in ("topk", "dgc") else ""
        text += f"{about} {_megabytes(coded)}, a factor of {dense / coded:.3g}"
    if compression.method == "dgc" and (epochs := compression.dgc_warmup_epochs):
        text += f" after a warm-up of {epochs} epoch(s)"
    if num_ranks == 1:
        return f"{text}. One rank sends nothing."
    whole = 4 * sum(
        size for size in map(math.prod, shapes) if size < compression.dense_below
    )
    return f"{text}. {_sent(compression, coded, whole, dense, num_ranks)}"


def _coded_bytes(
    compression: CompressionSettings, shapes: Sequence[Sequence[int]]
) -> int | None:
    """Returns the bytes of a rank's coded gradients; None if they depend on these."""
    if compression.method == "powersgd":
        return message_sizes.of_powersgd(
            shapes, compression.powersgd_rank, compression.dense_below
        )
    named = {str(number): shape for number, shape in enumerate(shapes)}
    of_vectors = vectors.shapes(named, compression.compress).values()
    return message_sizes.of_step(compression, map(math.prod, of_vectors))


def _sent(
    compression: CompressionSettings,
    coded: int | None,
    whole: int,
    dense: int,
    num_ranks: int,
) -> str:
    """Returns which exchange is used, and what each rank sends.

    Args:
        compression: The settings of compression.
        coded: Bytes of a rank's coded gradients; None if they depend on the gradients.
        whole: Bytes of those among them that an all-reduce sums up as they are
            (`dense_below`).
        dense: Bytes of the gradients.
        num_ranks: Number of ranks, at least 2.
    """
    dense_sent = message_sizes.sent_by_allreduce(dense, num_ranks)
    instead = f"instead of {_megabytes(dense_sent)} without compression (all-reduce)"
    if coded is not None and compression.method in SUMMED_METHODS:
        sent = message_sizes.sent_by_allreduce(coded, num_ranks)
        way = "What the ranks send is summed on its way (all-reduce)"
        return f"{way}: each of {num_ranks:,} sends {_megabytes(sent)} {instead}."
    ways = {
        "allgather": "Each message goes to all other ranks (all-gather)",
        "sliced": "Each rank sums up one slice of all messages (slices)",
    }
    sentences = [
        f"{way}: {_sent_by(name, coded, whole, dense_sent, num_ranks)} {instead}"
        for name, way in ways.items()
        if compression.exchange in ("auto", name)
    ]
    text = ". ".join(sentences)
    if len(sentences) > 1:
        text += ". A measurement at the start decides"
    return f"{text}."


def _sent_by(
    exchange: str, coded: int | None, whole: int, dense_sent: int, num_ranks: int
) -> str:
    """Returns what each rank sends by an exchange of messages, and whole beside it."""
    ranks = f"each of {num_ranks:,} ranks sends"
    if coded is None:
        factor: float = num_ranks - 1
        if exchange == "sliced":
            factor = 2 * (num_ranks - 1) / num_ranks
        return f"{ranks} {factor:.3g} times its message"
    sent_by = {
        "allgather": message_sizes.sent_by_allgather,
        "sliced": message_sizes.sent_by_slices,
    }
    sent = sent_by[exchange](coded - whole, num_ranks)
    sent += message_sizes.sent_by_allreduce(whole, num_ranks)
    more = ", which is more," if sent > dense_sent else ""
    return f"{ranks} {_megabytes(sent)}{more}"


def _megabytes(num_bytes: int) -> str:
    """Returns bytes in MB, 10^6 bytes, or in kB if they are fewer."""
    if num_bytes >= 1e6:
        return f"{num_bytes / 1e6:,.1f} MB"
    return f"{num_bytes / 1e3:,.1f} kB"
