"""Checks a job before it is started: asks each host, and starts the ranks once.

The ranks are started by the command of the job, with a measuring program instead of the
training (`eval/launched_ranks.py`). What hosts and ranks report is compared here.
"""

import dataclasses
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch import hosts, job_plan
from launch.commands import StopRequests
from launch.dialects import Dialect
from launch.hosts import HostReport
from launch.job_plan import JobPlan
from launch.topology import Interface, Topology, cpu_list
from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.base.text import counted, first_of, hanging, listed
from resnet.selftest import verdict
from resnet.selftest.verdict import HostResult

_EVAL = Path(__file__).resolve().parents[1] / "eval"
_MEASURING, _SELF_TEST = _EVAL / "launched_ranks.py", _EVAL / "selftest.py"
_SELF_TEST_SECONDS = 180.0  # Most of which imports TensorFlow from a file server.
# Time for the ranks to start and to measure. Then they end by themselves.
_START_SECONDS, _SECONDS_PER_RANK = 60, 0.25
_ENDING_SECONDS = 15
_ALARMS = (signal.SIGALRM, 128 + signal.SIGALRM)  # Exit codes, by the launcher.
_STALL_SECONDS = 20.0  # After which a lost host ends the measurement.
_NAME_WIDTH, _STATE_WIDTH = 11, 9

_DIGEST_CHARACTERS = 16  # Enough to tell two apart.
# A link is slow if it has less of the bandwidth, or more of the latency, than this part
# of the others' median. One bad cable slows all ranks.
_SLOW_BANDWIDTH = 0.5
_SLOW_LATENCY = 4.0
_LEAST_LINKS = 3  # For a median that a single slow one doesn't move.
_MOST_OF_MESSAGES = 0.5  # The part of the bytes that tells who has carried them.


@dataclass(frozen=True)
class Finding:
    """A line of the table: what is checked, what is there, and what is wrong."""

    name: str
    text: str
    problems: Sequence[str] = ()  # Sentences.
    is_checked: bool = True
    prevents_run: bool = True  # Whether a problem does, rather than make a job slower.

    @property
    def state(self) -> str:
        """The result in a word."""
        if self.problems:
            return "problem"
        return "ok" if self.is_checked else "-"


@dataclass
class Checked:
    """The result of a check, as far as it has come."""

    findings: list[Finding]
    plan: JobPlan | None = None
    hosts_of_ranks: Mapping[int, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """All that is wrong."""
        return [problem for finding in self.findings for problem in finding.problems]

    @property
    def can_run(self) -> bool:
        """Whether nothing prevents the job."""
        return not any(of.problems and of.prevents_run for of in self.findings)

    def describe(self) -> str:
        """Returns a table of what was found, with a sentence for each problem."""
        lines = [f"{'check':{_NAME_WIDTH}}{'result':{_STATE_WIDTH}}found"]
        for finding in self.findings:
            first = f"{finding.name:{_NAME_WIDTH}}{finding.state:{_STATE_WIDTH}}"
            lines += hanging(first, finding.text)
        return "\n".join([*lines, *listed("Problems", self.problems)])


def check(
    names: Sequence[str],
    dialect: Dialect,
    manifest_dir: str,
    make_plan: Callable[[Mapping[str, Topology]], JobPlan],
    requests: StopRequests,
) -> Checked:
    """Checks the hosts by their `hosts.reports`, and if all is right the ranks."""
    reports, failures = hosts.reports(names, dialect, manifest_dir, requests)
    text = f"{len(reports)} of {len(reports) + len(failures)} answered"
    text += f": {first_of(reports)}" if reports else ""
    checked = Checked([Finding("hosts", text, tuple(failures.values()))])
    if reports:
        checked.findings += [_versions(reports), _data(reports, bool(manifest_dir))]
    if not requests.seen and checked.can_run:
        checked.findings.append(_cores(names, dialect, requests))
    if requests.seen or not checked.can_run:
        return checked
    name, text = "plan", "none"
    try:
        plan = make_plan({host: report.topology for host, report in reports.items()})
        name, text, checked.plan = "ranks", "not started", plan
        report = _start_ranks(plan, requests)
    except UserError as error:
        checked.findings.append(Finding(name, text, [str(error)]))
        return checked
    checked.hosts_of_ranks = {rank.rank: rank.host for rank in report.ranks}
    checked.findings += compare_ranks(report, plan, reports)
    return checked


def _by_value(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns each different value with its hosts, the most frequent one first."""
    hosts_of: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts_of.setdefault(value, []).append(host)
    return sorted(hosts_of.items(), key=lambda item: -len(item[1]))


def _differences(values: Mapping[str, str]) -> str:
    """Returns the different values and their hosts; empty if all are equal."""
    different = _by_value(values)
    if len(different) < 2:
        return ""
    return ", ".join(f"{value} on {first_of(names)}" for value, names in different)


def _versions(reports: Mapping[str, HostReport]) -> Finding:
    problems, equal = [], []
    for key in next(iter(reports.values())).versions:
        values = {host: of.versions.get(key, "none") for host, of in reports.items()}
        value = next(iter(values.values()))
        label = key.removeprefix("version of ").removesuffix(" (SHA-256)")
        if text := _differences(values):
            problems.append(
                f"all hosts must have the same {key}; it is {text}. Use the same clone"
                " and environment on all of them."
            )
            continue
        if value == "none" and label != "compiled ops":  # Stock ops do.
            problems.append(
                f"{label} must be installed on the hosts; it isn't. Use the environment"
                " of `make venv`."
            )
        equal.append(f"{label} {value}")
    return Finding("versions", ", ".join(equal) or "they differ", problems)


def _data(reports: Mapping[str, HostReport], is_expected: bool) -> Finding:
    if not is_expected:
        return Finding("data", "not checked without --data_dir", is_checked=False)
    reasons = {host: of.data_problem for host, of in reports.items() if of.data_problem}
    problems = [
        f"the data set must be readable on each host; on {first_of(names)} it isn't:"
        f" {reason}"
        for reason, names in _by_value(reasons)
    ]
    digests = {
        host: report.data[:_DIGEST_CHARACTERS]
        for host, report in reports.items()
        if not report.data_problem
    }
    text = "no manifest"
    if different := _differences(digests):
        text = "manifests differ"
        problems.append(
            "all hosts must have the same data set; the SHA-256 of its manifest is"
            f" {different}. Copy the records again."
        )
    elif digests:
        text = f"the same manifest, SHA-256 {next(iter(digests.values()))}"
    return Finding("data", text, problems)


def _cores(names: Sequence[str], dialect: Dialect, requests: StopRequests) -> Finding:
    """Has each host test its cores, and compares what they compute."""
    program = [sys.executable, str(_SELF_TEST), "--json"]
    question = hosts.Question(program, HostResult, _SELF_TEST_SECONDS)
    answers, failures = hosts.ask(names, dialect, question, requests)
    results = [dataclasses.replace(of, host=host) for host, of in answers.items()]
    judged, num_cores = verdict.judge(results), sum(len(of.cores) for of in results)
    text = f"{counted(num_cores, 'core')} tested, with " + " and ".join(
        dict.fromkeys(of.kernels for of in results if of.cores)
    )
    if not num_cores:
        text = "not tested, without the compiled ops"
    return Finding(
        "cores",
        text,
        [*failures.values(), *judged.sentences],
        is_checked=num_cores > 0,
        prevents_run=bool(failures or judged.bad),
    )


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


def _start_ranks(plan: JobPlan, requests: StopRequests) -> RankReport:
    seconds = round(_START_SECONDS + _SECONDS_PER_RANK * plan.shape.num_processes)
    program = [
        sys.executable,
        str(_MEASURING),
        f"--num_intra_threads={plan.layout.num_intra_threads}",
        f"--num_inter_threads={plan.layout.num_inter_threads}",
        f"--stall_seconds={_STALL_SECONDS}",
        f"--most_seconds={seconds}",
    ]
    done = requests.run_captured(plan.launched(program), seconds + _ENDING_SECONDS)
    if done.timed_out or done.exit_code in _ALARMS:
        raise UserError(
            f"the ranks must start and reach each other within {seconds} s; they"
            " haven't. Is there a firewall between the hosts?"
        )
    if done.exit_code:
        raise UserError(
            f"the ranks must start and reach each other; `{plan.dialect.program}`"
            f" has ended with exit code {done.exit_code}: {done.reason}"
        )
    return parse_ranks(done.stdout)


def parse_ranks(text: str) -> RankReport:
    """Returns the report in what the measuring program has printed."""
    for line in reversed(text.splitlines()):
        try:
            return json_file.parse(line, RankReport, "it", "a report of the ranks")
        except UserError:
            continue
    raise UserError(
        f"the ranks' program has printed no report: {text.strip()[-80:]!r}."
    )


def compare_ranks(
    report: RankReport, plan: JobPlan, reports: Mapping[str, HostReport]
) -> list[Finding]:
    """Compares what the ranks got with the plan and the hosts."""
    binding = _binding(report, plan, reports)
    return [binding, _network(report), _transport(report, reports)]


def _binding(
    report: RankReport, plan: JobPlan, reports: Mapping[str, HostReport]
) -> Finding:
    problems = []
    boot_ids = {of_host.boot_id for of_host in reports.values()}
    strangers = [rank.host for rank in report.ranks if rank.boot_id not in boot_ids]
    if strangers:
        problems.append(
            f"each rank must run on a host of the job, {first_of(reports)}; there are"
            f" ranks on {first_of(dict.fromkeys(strangers))}. Use --hosts=FILE."
        )
    if plan.job == "parameter_server":
        text = "not checked: servers share the cores of a host"
        return Finding("binding", text, problems, is_checked=False)
    has_numbers = plan.topology.has_cpu_numbers
    planned = {
        rank: sorted(cpu for core in cores for cpu in core.cpus)
        for rank, cores in enumerate(plan.layout.cores)
    }
    users = Counter((rank.host, cpu) for rank in report.ranks for cpu in rank.cpus)
    wrong = []
    for rank in report.ranks:
        cpus = planned.get(rank.local_rank, [])
        is_right = (
            list(rank.cpus) == cpus if has_numbers else len(rank.cpus) == len(cpus)
        )
        if not is_right or any(users[rank.host, cpu] > 1 for cpu in rank.cpus):
            wrong.append(rank)
    text = f"{len(report.ranks) - len(wrong)} of {len(report.ranks)} ranks on their"
    text += " planned cores"
    if wrong:
        rank, others = wrong[0], len(wrong) - 1
        cpus = planned.get(rank.local_rank, [])
        reason = "Turn the launcher's own binding off (docs/planning.md)."
        for cause in job_plan.unused_cpus(plan.shape, plan.dialect, plan.layout):
            reason = f"The reason is that {cause}."
        problems.append(
            f"each rank must get its planned cores; rank {rank.rank} on {rank.host} has"
            f" processors {cpu_list(rank.cpus)} of {cpu_list(rank.given_cpus)} that the"
            " launcher left it, not"
            f" {cpu_list(cpus) if has_numbers and cpus else f'{len(cpus)} for itself'}"
            f"{f'; other ranks likewise: {others}' * (others > 0)}. {reason}"
        )
    elif has_numbers:
        first = [rank for rank in report.ranks if rank.host == report.ranks[0].host]
        text += f": {' | '.join(cpu_list(rank.cpus) for rank in first[:4])}"
    return Finding("binding", text, problems)


def _network(report: RankReport) -> Finding:
    if not report.links:
        return Finding("network", "one host", is_checked=False)
    host_of = {rank.rank: rank.host for rank in report.ranks}
    ends = [" - ".join(host_of[rank] for rank in link.ranks) for link in report.links]
    speeds = [8e-9 * link.bandwidth for link in report.links]
    latencies = [1e6 * link.latency for link in report.links]
    speed, latency = statistics.median(speeds), statistics.median(latencies)
    slowest, latest = min(speeds), max(latencies)
    usual = f"{speed:.3g} Gbit/s", f"{latency:.0f} us"
    worst = (
        f"{slowest:.3g} Gbit/s ({ends[speeds.index(slowest)]})",
        f"{latest:.0f} us ({ends[latencies.index(latest)]})",
    )
    text = f"{usual[0]} each way, {usual[1]}"
    if len(ends) > 1:
        text += f" in the median; the slowest {', '.join(worst)}"
    are_slow = slowest < _SLOW_BANDWIDTH * speed, latest > _SLOW_LATENCY * latency
    problems = [
        "the connections must be equally fast, since all ranks wait for the slowest;"
        f" the median is {median}, and there is {value}. Leave the host out, or look"
        " for a bad cable."
        for median, value, is_slow in zip(usual, worst, are_slow, strict=True)
        if is_slow and len(ends) >= _LEAST_LINKS
    ]
    return Finding("network", text, problems, prevents_run=False)


def _transport(report: RankReport, reports: Mapping[str, HostReport]) -> Finding:
    """Returns what has carried the messages, and whether there is something better."""
    if not report.links:
        return Finding("transport", "one host: shared memory", is_checked=False)
    ends = Counter(rank for link in report.links for rank in link.ranks)
    # Hosts are equal; the name by which a rank knows its own may be another one.
    any_host = next(iter(reports.values()))
    carriers, worse = {}, {}
    for rank in report.ranks:
        if rank.rank in ends:
            name = _carrier(rank.traffic, ends[rank.rank] * report.message_bytes)
            interfaces = reports.get(rank.host, any_host).topology.interfaces
            carriers[rank.host] = name
            if text := _better_than(name, interfaces):
                worse[rank.host] = text
    problems = [
        f"MPI must use the fastest network; {first_of(names)}: {text}. See"
        " docs/planning.md."
        for text, names in _by_value(worse)
    ]
    text = _differences(carriers) or next(iter(carriers.values()))
    return Finding("transport", text, problems, prevents_run=False)


def _carrier(traffic: Traffic, num_bytes: int) -> str:
    """Returns what has carried the messages of a rank, in words."""
    for kind, sent in (("TCP", traffic.tcp_bytes), ("fabric", traffic.port_bytes)):
        if sum(sent.values()) > _MOST_OF_MESSAGES * num_bytes:
            return f"{kind} by {max(sent, key=lambda name: sent[name])}"
    if traffic.open_devices:
        return f"fabric by {', '.join(traffic.open_devices)}"
    return "no TCP and no port of a fabric: shared memory, or unknown"


def _better_than(name: str, interfaces: Sequence[Interface]) -> str:
    """Returns why another interface should have been taken, in words, or nothing."""
    kind, _, used = name.partition(" by ")
    if kind != "TCP":
        return ""
    speeds = {interface.name: interface.megabits_per_second for interface in interfaces}
    fabrics = [other for other in speeds if ":" in other]  # Ports, as mlx5_0:1.
    if fabrics:
        return f"MPI uses TCP by {used}, though there is a fabric, {fabrics[0]}"
    best = max(speeds, key=lambda other: speeds[other], default=used)
    if speeds.get(best, 0) > speeds.get(used, 0) > 0:
        return (
            f"MPI uses TCP by {used} with {speeds[used] / 1000:g} Gbit/s, though"
            f" {best} has {speeds[best] / 1000:g}"
        )
    return ""
