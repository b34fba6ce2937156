"""Finds out what has carried the messages between the hosts: a fabric, or TCP."""

from collections.abc import Mapping

from launch.checking.findings import Finding, Problem, by_value, differences, names
from launch.checking.rank_report import Rank, RankReport
from launch.nodes.topology import Interface

_MOST_OF_MESSAGES = 0.5  # The part of the bytes that tells who has carried them.
_IS_FABRIC = ":"  # In the names of ports, such as mlx5_0:1.


def find(
    report: RankReport, interfaces: Mapping[str, tuple[Interface, ...]]
) -> Finding:
    """Returns what has carried the messages, and whether there is something better.

    Args:
        report: What the ranks got.
        interfaces: The network interfaces of each host, by its name.
    """
    if not report.links:
        return Finding("transport", "one host: shared memory", is_checked=False)
    measured = {number for link in report.links for number in link.ranks}
    ranks = [rank for rank in report.ranks if rank.rank in measured]
    num_links = {
        rank.rank: sum(rank.rank in link.ranks for link in report.links)
        for rank in ranks
    }
    num_machines = len({rank.boot_id for rank in ranks})
    carriers = {
        rank.host: carrier(
            rank,
            num_links[rank.rank] * report.message_bytes,
            num_machines == len(ranks),
        )
        for rank in ranks
    }
    # Hosts are equal; the name by which a rank knows its own may be another one.
    any_host = next(iter(interfaces.values()), ())
    worse = {
        host: text
        for host, name in carriers.items()
        if (text := _better_than(name, interfaces.get(host, any_host)))
    }
    problems = [
        Problem(
            f"MPI must use the fastest network; {names(hosts)}: {text}. See"
            " docs/planning.md.",
            prevents_run=False,
        )
        for text, hosts in by_value(worse)
    ]
    unknown = [host for host, name in carriers.items() if not name]
    if unknown:
        problems.append(
            Problem(
                f"what carries MPI's messages could not be determined on"
                f" {names(unknown)}: neither a TCP connection nor the port of a fabric"
                " has sent them. Compare the bandwidth with that of the network.",
                prevents_run=False,
            )
        )
    known = {host: name or "unknown" for host, name in carriers.items()}
    found = differences(known) or next(iter(known.values()))
    return Finding("transport", found, tuple(problems))


def carrier(rank: Rank, num_bytes: int, are_machines: bool) -> str:
    """Returns what has carried the messages of a rank, in words; empty if unknown.

    Args:
        rank: The rank.
        num_bytes: The bytes that it has sent.
        are_machines: Whether the hosts are different machines, rather than containers
            or namespaces of one.
    """
    for kind, sent in (("TCP", rank.tcp_bytes), ("fabric", rank.port_bytes)):
        if sum(sent.values()) > _MOST_OF_MESSAGES * num_bytes:
            return f"{kind} by {max(sent, key=lambda name: sent[name])}"
    if rank.open_devices:
        return f"fabric by {', '.join(rank.open_devices)}"
    return "" if are_machines else "shared memory, since the hosts are one machine"


def _better_than(name: str, interfaces: tuple[Interface, ...]) -> str:
    """Returns why another interface should have been taken, in words, or nothing."""
    kind, _, used = name.partition(" by ")
    if kind != "TCP":
        return ""
    speeds = {one.name: one.megabits_per_second for one in interfaces}
    fabrics = [other for other in speeds if _IS_FABRIC in other]
    if fabrics:
        return (
            f"MPI uses TCP by {used}, though there is a fabric, {fabrics[0]}, whose"
            " driver or library it doesn't find"
        )
    faster = [other for other in speeds if speeds[other] > speeds.get(used, 0) > 0]
    if faster:
        best = max(faster, key=lambda other: speeds[other])
        return (
            f"MPI uses TCP by {used} with {speeds[used] / 1000:g} Gbit/s, though"
            f" {best} has {speeds[best] / 1000:g}"
        )
    return ""
