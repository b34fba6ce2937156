"""Compares what the ranks of a job got with its plan: pure functions."""

import statistics
from collections.abc import Mapping

from launch.checking import transport
from launch.checking.findings import Finding, Problem, by_value, names
from launch.checking.host_report import HostReport
from launch.checking.rank_report import Link, Rank, RankReport
from launch.nodes.topology import cpu_list
from launch.planning import advice
from launch.planning.job_plan import Plan

# Deaths of ranks on different hosts are put in order by the hosts' clocks.
_MOST_CLOCK_SECONDS = 0.1
# A link is slow if it has less of the bandwidth, or more of the latency, than this part
# of the others' median. One bad cable slows all ranks.
_SLOW_BANDWIDTH = 0.5
_SLOW_LATENCY = 4.0
_LEAST_LINKS = 3  # For a median that a single slow one doesn't move.
_TURN_OFF = "Turn the launcher's own binding off (docs/planning.md)."


def compare(
    report: RankReport, plan: Plan, hosts: Mapping[str, HostReport]
) -> list[Finding]:
    """Returns what is there and what is wrong.

    Args:
        report: What the ranks got.
        plan: The plan of the job.
        hosts: The report of each host of the job, by its name.
    """
    interfaces = {host: one.topology.interfaces for host, one in hosts.items()}
    return [
        _binding(report, plan, hosts),
        _clocks(report),
        _network(report),
        transport.find(report, interfaces),
    ]


def _binding(
    report: RankReport, plan: Plan, hosts: Mapping[str, HostReport]
) -> Finding:
    """Compares the hosts and the cores of the ranks with those of the plan."""
    problems = _unplanned_hosts(report, hosts)
    if plan.job == "parameter_server":
        text = "not checked: servers share the cores of a host"
        return Finding("binding", text, tuple(problems), is_checked=False)
    wrong = [rank for rank in report.ranks if not _is_planned(rank, plan)]
    problems += [
        Problem(
            f"each rank must get its planned cores; rank {rank.rank} on {rank.host} has"
            f" processors {cpu_list(rank.cpus)} of {cpu_list(rank.given_cpus)} that the"
            f" launcher left it, not {_planned_cpus(rank, plan)}{_others(wrong)}."
            f" {_cause(plan)}"
        )
        for rank in wrong[:1]
    ]
    shared = _shared_cpus(report)
    if shared and not wrong:
        host, cpu = shared
        problems.append(
            Problem(
                "no two ranks of a host may have the same core; on"
                f" {host} processor {cpu} has several. {_TURN_OFF}"
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
    boot_ids = {one.boot_id for one in hosts.values()}
    strangers = {
        rank.host: rank for rank in report.ranks if rank.boot_id not in boot_ids
    }
    if not strangers:
        return []
    return [
        Problem(
            f"each rank must run on a host of the job, {names(list(hosts))}; there are"
            f" ranks on {names(list(strangers))}. Choose the --launcher that starts the"
            " ranks there, or name the hosts by --hosts=FILE."
        )
    ]


def _cause(plan: Plan) -> str:
    """Returns why ranks have other cores than planned, or what to do about it."""
    causes = advice.of_srun(plan.shape, plan.launcher, plan.layout)
    return f"The reason is that {causes[0]}." if causes else _TURN_OFF


def _others(wrong: list[Rank]) -> str:
    """Returns how many further ranks have other cores, in words."""
    return f", and {len(wrong) - 1} other rank(s) likewise" if len(wrong) > 1 else ""


def _is_planned(rank: Rank, plan: Plan) -> bool:
    if rank.local_rank >= len(plan.layout.cores):
        return False
    cores = plan.layout.cores[rank.local_rank]
    cpus = sorted(cpu for core in cores for cpu in core.cpus)
    if plan.topology.has_cpu_numbers:
        return list(rank.cpus) == cpus
    return len(rank.cpus) == len(cpus)


def _planned_cpus(rank: Rank, plan: Plan) -> str:
    if rank.local_rank >= len(plan.layout.cores):
        return f"those of one of {len(plan.layout.cores)} ranks of a host"
    cpus = [cpu for core in plan.layout.cores[rank.local_rank] for cpu in core.cpus]
    return cpu_list(cpus) if plan.topology.has_cpu_numbers else f"{len(cpus)} of them"


def _shared_cpus(report: RankReport) -> tuple[str, int] | None:
    """Returns a host and a processor that two of its ranks have, if there is one."""
    seen = set()
    for rank in report.ranks:
        for cpu in rank.cpus:
            if (rank.host, cpu) in seen:
                return rank.host, cpu
            seen.add((rank.host, cpu))
    return None


def _clocks(report: RankReport) -> Finding:
    """Compares the clocks of the hosts with their median."""
    offsets = {rank.host: rank.clock_offset for rank in report.ranks}
    if len(offsets) < 2:
        return Finding("clock", "one host", is_checked=False)
    median = statistics.median(offsets.values())
    wrong = {
        host: f"{offset - median:+.1f} s"
        for host, offset in offsets.items()
        if abs(offset - median) > _MOST_CLOCK_SECONDS
    }
    problems = [
        Problem(
            f"the clocks of the hosts must agree within {_MOST_CLOCK_SECONDS} s, since"
            " the first of several failures is found by them; that of"
            f" {names(hosts)} differs by {text}. Synchronize it (NTP).",
            prevents_run=False,
        )
        for text, hosts in by_value(wrong)
    ]
    spread = max(offsets.values()) - min(offsets.values())
    return Finding("clock", f"all within {1000 * spread:.1f} ms", tuple(problems))


def _network(report: RankReport) -> Finding:
    """Finds links that are slower than the others."""
    if not report.links:
        return Finding("network", "one host", is_checked=False)
    host_of = {rank.rank: rank.host for rank in report.ranks}
    slowest = min(report.links, key=lambda link: link.bandwidth)
    latest = max(report.links, key=lambda link: link.latency)
    bandwidth = statistics.median(link.bandwidth for link in report.links)
    latency = statistics.median(link.latency for link in report.links)
    found = f"{_gigabits(bandwidth)} Gbit/s each way, {1e6 * latency:.0f} us"
    if len(report.links) > 1:
        found += (
            f" in the median; the slowest {_gigabits(slowest.bandwidth)} Gbit/s"
            f" ({_ends(slowest, host_of)}), {1e6 * latest.latency:.0f} us"
            f" ({_ends(latest, host_of)})"
        )
    problems = []
    if len(report.links) >= _LEAST_LINKS:
        if slowest.bandwidth < _SLOW_BANDWIDTH * bandwidth:
            value = f"{_gigabits(slowest.bandwidth)} Gbit/s"
            usual = f"{_gigabits(bandwidth)}"
            problems.append(_slow_link(value, usual, _ends(slowest, host_of)))
        if latest.latency > _SLOW_LATENCY * latency:
            value = f"{1e6 * latest.latency:.0f} us"
            problems.append(
                _slow_link(value, f"{1e6 * latency:.0f}", _ends(latest, host_of))
            )
    return Finding("network", found, tuple(problems))


def _gigabits(bytes_per_second: float) -> str:
    return f"{8e-9 * bytes_per_second:.3g}"


def _ends(link: Link, host_of: Mapping[int, str]) -> str:
    return " - ".join(host_of[rank] for rank in link.ranks)


def _slow_link(value: str, usual: str, ends: str) -> Problem:
    return Problem(
        "the connections must be equally fast, since all ranks wait for the slowest;"
        f" {ends} has {value}, and the median is {usual}. Leave the host out, or look"
        " for a bad cable.",
        prevents_run=False,
    )
