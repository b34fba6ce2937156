"""The bytes that ranks send, by formulas, and their description for a planned run."""

import math
from collections.abc import Sequence

from resnet.base.text import counted, size
from resnet.config.compression import METHODS, CompressionSettings, num_bytes, vectors

_WAYS = {"layerwise": "variable by variable", "entiremodel": "as one vector"}


def sent_by_allreduce(message_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that each rank sends where all ranks sum tensors in a ring.

    2 (R - 1) / R times the tensor, rounded: each rank sends R - 1 of its R parts while
    they are summed, and R - 1 parts of the sum.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", section 3.
    """
    return round(2 * (num_ranks - 1) * message_bytes / num_ranks)


def sent_by_allgather(message_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that a rank's message takes on its way to all other ranks."""
    return (num_ranks - 1) * message_bytes


def describe(
    settings: CompressionSettings, shapes: Sequence[Sequence[int]], num_ranks: int
) -> str:
    """Returns what the ranks send in an exchange, compressed and dense."""
    dense = 4 * sum(math.prod(shape) for shape in shapes)
    method = METHODS[settings.method]
    coded = None
    text = f"{settings.method} {_WAYS[settings.compress]}:"
    text += f" {_megabytes(dense)} an exchange become"
    if method.size == "assumed":
        text += " a message whose size depends on them"
    else:
        named = {str(number): shape for number, shape in enumerate(shapes)}
        of_vectors = vectors(named, settings.compress).values()
        coded = sum(num_bytes(settings, shape) for shape in of_vectors)
        about = " about" if method.size == "estimated" else ""
        text += f"{about} {_megabytes(coded)}, a factor of {dense / coded:.3g}"
    if settings.num_warmup_epochs:
        text += f" after a warm-up of {counted(settings.num_warmup_epochs, 'epoch')}"
    if num_ranks == 1:
        return f"{text}. One rank sends nothing."
    whole = 4 * sum(
        size for size in map(math.prod, shapes) if size < settings.dense_below
    )
    return f"{text}. {_sent(settings, coded, whole, dense, num_ranks)}"


def _sent(
    settings: CompressionSettings,
    coded: int | None,
    whole: int,
    dense: int,
    num_ranks: int,
) -> str:
    """Returns which exchange is used, and what each rank, of at least 2, sends.

    `coded` are the bytes of a rank's coded gradients, None if they depend on these, and
    `whole` the bytes among them that an all-reduce sums up as they are (`dense_below`).
    """
    dense_sent = sent_by_allreduce(dense, num_ranks)
    instead = f"instead of {_megabytes(dense_sent)} without compression (all-reduce)"
    if coded is not None and METHODS[settings.method].is_summed:
        sent = sent_by_allreduce(coded, num_ranks)
        way = "What the ranks send is summed on its way (all-reduce)"
        return f"{way}: each of {num_ranks:,} sends {_megabytes(sent)} {instead}."
    ways = {
        "allgather": "Each message goes to all other ranks (all-gather)",
        "sliced": "Each rank sums up one slice of all messages (slices)",
    }
    sentences = [
        f"{way}: {_sent_by(name, coded, whole, dense_sent, num_ranks)} {instead}"
        for name, way in ways.items()
        if settings.exchange == name
        # Two ranks send as many bytes both ways, and so aren't measured.
        or (settings.exchange == "auto" and (name == "allgather" or num_ranks > 2))
    ]
    text = ". ".join(sentences)
    if len(sentences) > 1:
        text += ". A measurement at the start decides"
    return f"{text}."


def _sent_by(
    exchange: str, coded: int | None, whole: int, dense_sent: int, num_ranks: int
) -> str:
    """Returns what each rank sends by an exchange of messages, and whole beside it.

    With slices, as by an all-reduce, if they are coded as densely as the whole.
    """
    ranks = f"each of {num_ranks:,} ranks sends"
    if coded is None:
        factor: float = num_ranks - 1
        if exchange == "sliced":
            factor = 2 * (num_ranks - 1) / num_ranks
        return f"{ranks} {factor:.3g} times its message"
    sent_by = {"allgather": sent_by_allgather, "sliced": sent_by_allreduce}
    sent = sent_by[exchange](coded - whole, num_ranks)
    sent += sent_by_allreduce(whole, num_ranks)
    more = ", which is more," if sent > dense_sent else ""
    return f"{ranks} {_megabytes(sent)}{more}"


def _megabytes(num_bytes: int) -> str:
    return size(num_bytes, units=("kB", "MB"))
