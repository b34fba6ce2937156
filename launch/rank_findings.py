"""Compares what the ranks of a job really got with its plan: pure functions.

The ranks report it by `eval/launched_ranks.py`, as JSON.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch import job_plan
from launch.host_findings import Finding, Problem, by_value, differences
from launch.host_report import HostReport
from launch.job_plan import JobPlan
from launch.topology import Interface, cpu_list
from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.base.text import first_of

# A link is slow if it has less of the bandwidth, or more of the latency, than this part
# of the others' median. One bad cable slows all ranks.
_SLOW_BANDWIDTH = 0.5
_SLOW_LATENCY = 4.0
_LEAST_LINKS = 3  # For a median that a single slow one doesn't move.
_TURN_OFF = "Turn the launcher's own binding off (docs/planning.md)."
_MOST_OF_MESSAGES = 0.5  # The part of the bytes that tells who has carried them.
_IS_FABRIC = ":"  # In the names of ports, such as mlx5_0:1.


@dataclass(frozen=True)
class Traffic:
    """What has carried the messages of a rank in the measurement."""

    tcp_bytes: dict[str, int]  # Sent by the rank, by interface.
    port_bytes: dict[str, int]  # Sent by the host, by the port of a fabric.
    open_devices: tuple[str, ...]  # Device files of fabrics that the rank has opened.


@dataclass(frozen=True)
class Rank:
    """What a rank got."""

    rank: int
    local_rank: int
    host: str
    boot_id: str  # What two hosts share only if they are one machine.
    given_cpus: tuple[int, ...]  # That the launcher has left it.
    cpus: tuple[int, ...]  # That it has bound itself to.
    traffic: Traffic


@dataclass(frozen=True)
class Link:
    """A connection between two hosts."""

    ranks: tuple[int, ...]  # The two that were measured.
    latency: float  # Seconds of a message of 8 bytes.
    bandwidth: float  # Bytes per second each way, both used at the same time.


@dataclass(frozen=True)
class RankReport:
    """What the ranks of a job got."""

    ranks: tuple[Rank, ...]
    links: tuple[Link, ...]  # Between neighboring hosts.
    message_bytes: int  # That each measurement of a link has sent in each direction.


def parse(text: str) -> RankReport:
    """Returns the report in what the measuring program has printed.

    Raises:
        UserError: If there is none.
    """
    lines = [line for line in text.splitlines() if line.startswith("{")]
    for line in reversed(lines):
        try:
            return json_file.parse(
                line, RankReport, "the line", "a report of the ranks"
            )
        except UserError:
            continue
    raise UserError(
        "the ranks must report what they got; the measuring program has printed no"
        f" report, but {text.strip()[-80:]!r}."
    )


def compare(
    report: RankReport, plan: JobPlan, hosts: Mapping[str, HostReport]
) -> list[Finding]:
    """Returns what is there and what is wrong."""
    interfaces = {host: of_host.topology.interfaces for host, of_host in hosts.items()}
    return [
        _binding(report, plan, hosts),
        _network(report),
        _transport(report, interfaces),
    ]


def _binding(
    report: RankReport, plan: JobPlan, hosts: Mapping[str, HostReport]
) -> Finding:
    """Compares the hosts and the cores of the ranks with those of the plan."""
    problems = _unplanned_hosts(report, hosts)
    if plan.job == "parameter_server":
        text = "not checked: servers share the cores of a host"
        return Finding("binding", text, tuple(problems), is_checked=False)
    wrong = [rank for rank in report.ranks if not _is_planned(rank, plan)]
    others = f", and {len(wrong) - 1} other rank(s) likewise" * (len(wrong) > 1)
    for rank in wrong[:1]:
        causes = job_plan.unused_cpus(plan.shape, plan.dialect, plan.layout)
        problems.append(
            Problem(
                f"each rank must get its planned cores; rank {rank.rank} on {rank.host}"
                f" has processors {cpu_list(rank.cpus)} of {cpu_list(rank.given_cpus)}"
                f" that the launcher left it, not {_planned_cpus(rank, plan)}{others}. "
                + (f"The reason is that {causes[0]}." if causes else _TURN_OFF)
            )
        )
    shared = _shared_cpu(report)
    if shared and not wrong:
        problems.append(
            Problem(
                "no two ranks of a host may have the same core; on"
                f" {shared[0]} processor {shared[1]} has several. {_TURN_OFF}"
            )
        )
    right = len(report.ranks) - len(wrong)
    found = f"{right} of {len(report.ranks)} ranks on their planned cores"
    if not wrong and plan.topology.has_cpu_numbers:
        first = [rank for rank in report.ranks if rank.host == report.ranks[0].host]
        found += f": {' | '.join(cpu_list(rank.cpus) for rank in first[:4])}"
    return Finding("binding", found, tuple(problems))


def _unplanned_hosts(
    report: RankReport, hosts: Mapping[str, HostReport]
) -> list[Problem]:
    """Returns a problem if ranks run on other machines than the hosts of the job."""
    boot_ids = {of_host.boot_id for of_host in hosts.values()}
    strangers = dict.fromkeys(
        rank.host for rank in report.ranks if rank.boot_id not in boot_ids
    )
    if not strangers:
        return []
    return [
        Problem(
            f"each rank must run on a host of the job, {first_of(hosts)}; there are"
            f" ranks on {first_of(strangers)}. Choose the --launcher that starts the"
            " ranks there, or name the hosts by --hosts=FILE."
        )
    ]


def _is_planned(rank: Rank, plan: JobPlan) -> bool:
    if rank.local_rank >= len(plan.layout.cores):
        return False
    cores = plan.layout.cores[rank.local_rank]
    cpus = sorted(cpu for core in cores for cpu in core.cpus)
    if plan.topology.has_cpu_numbers:
        return list(rank.cpus) == cpus
    return len(rank.cpus) == len(cpus)


def _planned_cpus(rank: Rank, plan: JobPlan) -> str:
    if rank.local_rank >= len(plan.layout.cores):
        return f"those of one of {len(plan.layout.cores)} ranks of a host"
    cpus = [cpu for core in plan.layout.cores[rank.local_rank] for cpu in core.cpus]
    return cpu_list(cpus) if plan.topology.has_cpu_numbers else f"{len(cpus)} of them"


def _shared_cpu(report: RankReport) -> tuple[str, int] | None:
    """Returns a host and a processor that two of its ranks have, if there is one."""
    seen = set()
    for rank in report.ranks:
        for cpu in rank.cpus:
            if (rank.host, cpu) in seen:
                return rank.host, cpu
            seen.add((rank.host, cpu))
    return None


def _network(report: RankReport) -> Finding:
    """Finds links that are slower than the others."""
    if not report.links:
        return Finding("network", "one host", is_checked=False)
    host_of = {rank.rank: rank.host for rank in report.ranks}
    slowest = min(report.links, key=lambda link: link.bandwidth)
    latest = max(report.links, key=lambda link: link.latency)
    slow_ends, late_ends = (
        " - ".join(host_of[rank] for rank in link.ranks) for link in (slowest, latest)
    )
    bandwidth = statistics.median(link.bandwidth for link in report.links)
    latency = statistics.median(link.latency for link in report.links)
    usual, low = f"{8e-9 * bandwidth:.3g}", f"{8e-9 * slowest.bandwidth:.3g} Gbit/s"
    usual_latency, high = f"{1e6 * latency:.0f}", f"{1e6 * latest.latency:.0f} us"
    found = f"{usual} Gbit/s each way, {usual_latency} us"
    if len(report.links) > 1:
        found += (
            f" in the median; the slowest {low} ({slow_ends}), {high} ({late_ends})"
        )
    problems = []
    if len(report.links) >= _LEAST_LINKS:
        if slowest.bandwidth < _SLOW_BANDWIDTH * bandwidth:
            problems.append(_slow_link(slow_ends, low, usual))
        if latest.latency > _SLOW_LATENCY * latency:
            problems.append(_slow_link(late_ends, high, usual_latency))
    return Finding("network", found, tuple(problems))


def _slow_link(ends: str, value: str, usual: str) -> Problem:
    return Problem(
        "the connections must be equally fast, since all ranks wait for the slowest;"
        f" {ends} has {value}, and the median is {usual}. Leave the host out, or look"
        " for a bad cable.",
        prevents_run=False,
    )


def _transport(
    report: RankReport, interfaces: Mapping[str, Sequence[Interface]]
) -> Finding:
    """Returns what has carried the messages, and whether there is something better."""
    if not report.links:
        return Finding("transport", "one host: shared memory", is_checked=False)
    ends = [rank for link in report.links for rank in link.ranks]
    measured = [rank for rank in report.ranks if rank.rank in ends]
    are_machines = len({rank.boot_id for rank in measured}) == len(measured)
    carriers = {
        rank.host: _carrier(
            rank.traffic, ends.count(rank.rank) * report.message_bytes, are_machines
        )
        for rank in measured
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
            f"MPI must use the fastest network; {first_of(hosts)}: {text}. See"
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
                f" {first_of(unknown)}: neither a TCP connection nor the port of a"
                " fabric has sent them. Compare the bandwidth with that of the"
                " network.",
                prevents_run=False,
            )
        )
    known = {host: name or "unknown" for host, name in carriers.items()}
    found = differences(known) or next(iter(known.values()))
    return Finding("transport", found, tuple(problems))


def _carrier(traffic: Traffic, num_bytes: int, are_machines: bool) -> str:
    """Returns what has carried the messages of a rank, in words; empty if unknown.

    Args:
        are_machines: Whether the hosts are different machines, rather than containers
            or namespaces of one.
    """
    for kind, sent in (("TCP", traffic.tcp_bytes), ("fabric", traffic.port_bytes)):
        if sum(sent.values()) > _MOST_OF_MESSAGES * num_bytes:
            return f"{kind} by {max(sent, key=lambda name: sent[name])}"
    if traffic.open_devices:
        return f"fabric by {', '.join(traffic.open_devices)}"
    return "" if are_machines else "shared memory, since the hosts are one machine"


def _better_than(name: str, interfaces: Sequence[Interface]) -> str:
    """Returns why another interface should have been taken, in words, or nothing."""
    kind, _, used = name.partition(" by ")
    if kind != "TCP":
        return ""
    speeds = {interface.name: interface.megabits_per_second for interface in interfaces}
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
