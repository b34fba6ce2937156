"""Chooses how compressed gradients reach all ranks, by the predicted time."""

from absl import logging

from resnet.config.compression import SUMMED_METHODS, CompressionSettings
from resnet.distributed import interconnect
from resnet.distributed.communicator import Communicator
from resnet.distributed.interconnect import Interconnect
from resnet.exchange.codecs import message_sizes
from resnet.exchange.gathered import BUCKET_VALUES

# The fraction of the values that thresholdv and adaptivethreshold keep isn't known
# before the run; this one is assumed.
_ASSUMED_RATIO = 0.01


def choose(compression: CompressionSettings, communicator: Communicator) -> str:
    """Returns the exchange of a run, the same on all ranks.

    "auto" becomes "allgather" or "sliced", by a measurement of the network. It stays
    "auto" where no messages are exchanged. On two ranks, which send as many bytes both
    ways, and on one it becomes "allgather".

    Args:
        compression: The settings of compression.
        communicator: The ranks.
    """
    has_messages = (
        compression.compress != "none" and compression.method not in SUMMED_METHODS
    )
    if compression.exchange != "auto" or not has_messages:
        return compression.exchange
    num_ranks = communicator.num_ranks
    if num_ranks <= 2:
        return "allgather"
    measured = interconnect.measure(communicator)
    num_bytes = bytes_of_bucket(compression)
    seconds = {
        "allgather": seconds_of_allgather(num_bytes, num_ranks, measured),
        "sliced": seconds_of_slices(num_bytes, num_ranks, measured),
    }
    chosen = min(seconds, key=lambda name: seconds[name])
    if communicator.rank == 0:
        logging.info(
            "exchange %s: for the messages of %d values an all-gather is predicted to"
            " take %.3g ms and slices %.3g ms, with a latency of %.3g us and %.3g"
            " Gbit/s a rank",
            chosen,
            BUCKET_VALUES,
            *(1e3 * seconds["allgather"], 1e3 * seconds["sliced"]),
            *(1e6 * measured.latency, 8e-9 * measured.bandwidth),
        )
    return chosen


def bytes_of_bucket(compression: CompressionSettings) -> int:
    """Returns the bytes of a rank's messages that travel together.

    Those of dgc are its first epoch's, the longest: of a run of 24 epochs that keeps
    1 % after four epochs of warm-up, the warm-up sends three quarters of all bytes.

    Args:
        compression: The settings of compression. Of methods that keep as many values as
            reach a threshold, 1 % is assumed.
    """
    if compression.method in message_sizes.OF_UNKNOWN_SIZE:
        compression = CompressionSettings(
            method="topk",
            ratio=_ASSUMED_RATIO,
            kept_values=compression.kept_values,
        )
    return message_sizes.largest_of_vector(compression, BUCKET_VALUES)


def seconds_of_allgather(
    num_bytes: int, num_ranks: int, measured: Interconnect
) -> float:
    """Returns the predicted time of an all-gather, R - 1 messages, in seconds.

    Args:
        num_bytes: Bytes of each rank's messages.
        num_ranks: Number of ranks R.
        measured: The network.
    """
    sent = message_sizes.sent_by_allgather(num_bytes, num_ranks)
    return measured.seconds(num_ranks - 1, sent)


def seconds_of_slices(num_bytes: int, num_ranks: int, measured: Interconnect) -> float:
    """Returns the predicted time of an exchange in slices, 2 (R - 1) messages.

    Args:
        num_bytes: Bytes of each rank's messages.
        num_ranks: Number of ranks R.
        measured: The network.
    """
    sent = message_sizes.sent_by_slices(num_bytes, num_ranks)
    return measured.seconds(2 * (num_ranks - 1), sent)
