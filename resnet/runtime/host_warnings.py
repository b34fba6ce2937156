"""The warnings of all ranks reach the user, with the names of the ranks and hosts.

Those of the start, such as about a host that will be slow, are gathered and logged by
rank 0. Later ones are printed by rank 0's watchdog.
"""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence

from absl import logging as absl_logging

from resnet.base.text import first_of
from resnet.distributed.communicator import Communicator
from resnet.hardware import cpu_features


@contextlib.contextmanager
def reported(communicator: Communicator) -> Iterator[None]:
    """Has rank 0's watchdog print the warnings of other ranks inside the block.

    It prints each text once, with the names of the ranks that have logged it. Before a
    rank has a watchdog, its warnings are dropped and its errors are printed as usual.
    """

    def report(record: logging.LogRecord) -> None:
        level = "warning" if record.levelno == logging.WARNING else "error"
        is_reported = communicator.report_warning(level, record.getMessage())
        if not is_reported and level == "error" and communicator.rank != 0:
            logging.getLogger().handle(record)

    with _handled_by(report, communicator.rank):
        yield


@contextlib.contextmanager
def _handled_by(emit: Callable[[logging.LogRecord], None], rank: int) -> Iterator[None]:
    """Has a function alone get absl's warnings; those of rank 0 are printed too."""
    logger, handler = absl_logging.get_absl_logger(), logging.Handler(logging.WARNING)
    handler.emit = emit  # type: ignore[assignment, method-assign]
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers = [handler]
    if rank != 0:
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)


@contextlib.contextmanager
def gathered(communicator: Communicator) -> Iterator[None]:
    """Has rank 0 log the warnings of all ranks inside the block, naming their hosts.

    Only rank 0 prints warnings, so those of other hosts would be lost; errors are
    treated as outside the block. It also logs whether the hosts have different CPUs.
    All ranks must leave the block together.
    """
    messages: list[str] = []
    outside: list[logging.Handler | logging.Logger]
    outside = [*absl_logging.get_absl_logger().handlers] or [logging.getLogger()]

    def collect(record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            messages.append(record.getMessage())
        elif communicator.rank != 0:
            for handler in outside:
                handler.handle(record)

    with _handled_by(collect, communicator.rank):
        yield
    report = (socket.gethostname(), cpu_features.model_name(), messages)
    reports = communicator.gather_objects(report)
    if reports is not None:
        for warning in describe(reports):
            absl_logging.warning("%s", warning)


def describe(reports: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Returns the warnings that rank 0 has not logged by itself.

    The reports are the host, the name of the CPU and the warnings of each rank.
    """
    # With dicts as ordered sets of hosts.
    hosts_of_cpu: dict[str, dict[str, None]] = {}
    hosts_of_message: dict[str, dict[str, None]] = {}
    for host, cpu, messages in reports:
        hosts_of_cpu.setdefault(cpu, {})[host] = None
        for message in messages:
            hosts_of_message.setdefault(message, {})[host] = None
    known = reports[0][2]
    warnings = [
        f"on {first_of(hosts)}: {message}"
        for message, hosts in hosts_of_message.items()
        if message not in known
    ]
    if len(hosts_of_cpu) > 1:
        cpus = [f"{cpu} on {first_of(hosts)}" for cpu, hosts in hosts_of_cpu.items()]
        warnings.append(
            f"the hosts have different CPUs, and all wait for the slowest:"
            f" {'; '.join(cpus)}"
        )
    return warnings
