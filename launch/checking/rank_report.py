"""What the ranks of a job really got, as `eval/launched_ranks.py` says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base.errors import UserError


@dataclass(frozen=True)
class Rank:
    """What a rank got.

    Attributes:
        rank: Its number.
        local_rank: Its number on the host.
        host: The name of the host.
        boot_id: What two hosts share only if they are one machine.
        given_cpus: The logical processors that the launcher has left it.
        cpus: Those that it has bound itself to.
        clock_offset: The seconds by which the host's clock is ahead of rank 0's.
        tcp_bytes: What it has sent by TCP in the measurement, by interface.
        port_bytes: What the host has sent by the ports of a fabric meanwhile.
        open_devices: The device files of fabrics that it has opened.
    """

    rank: int
    local_rank: int
    host: str
    boot_id: str
    given_cpus: tuple[int, ...]
    cpus: tuple[int, ...]
    clock_offset: float
    tcp_bytes: Mapping[str, int]
    port_bytes: Mapping[str, int]
    open_devices: tuple[str, ...]


@dataclass(frozen=True)
class Link:
    """A connection between two hosts.

    Attributes:
        ranks: The ranks that were measured.
        latency: Seconds that a message of 8 bytes takes.
        bandwidth: Bytes per second in each direction, both used at the same time.
    """

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class RankReport:
    """What the ranks of a job got.

    Attributes:
        ranks: The ranks, by their number.
        links: The connections between neighboring hosts.
        message_bytes: What each measurement of a link has sent in each direction.
    """

    ranks: tuple[Rank, ...]
    links: tuple[Link, ...]
    message_bytes: int


def parse(text: str) -> RankReport:
    """Returns the report in what the measuring program has printed.

    Args:
        text: Its output, in which the report is a line of JSON.

    Raises:
        UserError: If there is none.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return _report(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
    raise UserError(
        "the ranks must report what they got; the measuring program has printed no"
        f" report, but {text.strip()[-80:]!r}."
    )


def _report(values: Mapping[str, Any]) -> RankReport:
    ranks = []
    for one in values["ranks"]:
        fields = {**one, **one["traffic"]}
        del fields["traffic"]
        for name in ("given_cpus", "cpus", "open_devices"):
            fields[name] = tuple(fields[name])
        ranks.append(Rank(**fields))
    links = [Link(**{**one, "ranks": tuple(one["ranks"])}) for one in values["links"]]
    return RankReport(tuple(ranks), tuple(links), values["message_bytes"])
