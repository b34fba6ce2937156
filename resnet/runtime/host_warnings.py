"""Rank 0 logs the warnings of all ranks, such as about a host that will be slow."""

import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence

from absl import logging as absl_logging

from resnet.distributed.communicator import Communicator
from resnet.hardware import cpu_features

_NAMED_HOSTS = 4  # Further ones are counted.


class _Collector(logging.Handler):
    """Collects the warnings of a rank; errors are printed as usual."""

    def __init__(self, rank: int) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self._passes_on = rank != 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self.messages.append(record.getMessage())
        elif self._passes_on:
            logging.getLogger().handle(record)


@contextlib.contextmanager
def gathered(communicator: Communicator) -> Iterator[None]:
    """Has rank 0 log the warnings of all ranks inside the block, naming their hosts.

    Only rank 0 prints warnings, so those of other hosts would be lost. It also logs
    whether the hosts have different CPUs. All ranks must leave the block together.

    Args:
        communicator: The ranks.
    """
    logger = absl_logging.get_absl_logger()
    collector = _Collector(communicator.rank)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(collector)
    if communicator.rank != 0:
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagates
    report = (socket.gethostname(), cpu_features.model_name(), collector.messages)
    reports = communicator.allgather(report)
    if communicator.rank == 0:
        for warning in describe(reports):
            absl_logging.warning("%s", warning)


def describe(reports: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Returns the warnings that rank 0 has not logged by itself.

    Args:
        reports: The host, the name of the CPU and the warnings of each rank.
    """
    hosts_of_cpu: dict[str, list[str]] = {}
    hosts_of_message: dict[str, list[str]] = {}
    for host, cpu, messages in reports:
        hosts_of_cpu.setdefault(cpu, []).append(host)
        for message in messages:
            hosts_of_message.setdefault(message, []).append(host)
    known = reports[0][2]
    warnings = [
        f"on {_names(hosts)}: {message}"
        for message, hosts in hosts_of_message.items()
        if message not in known
    ]
    if len(hosts_of_cpu) > 1:
        cpus = (f"{cpu} on {_names(hosts)}" for cpu, hosts in hosts_of_cpu.items())
        warnings.append(
            f"the hosts have different CPUs, and all wait for the slowest:"
            f" {'; '.join(cpus)}"
        )
    return warnings


def _names(hosts: Sequence[str]) -> str:
    different = list(dict.fromkeys(hosts))
    text = ", ".join(different[:_NAMED_HOSTS])
    if len(different) > _NAMED_HOSTS:
        text += f" and {len(different) - _NAMED_HOSTS} more"
    return text
