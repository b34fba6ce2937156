"""Checks a job before it is started: asks each host, and starts the ranks once.

The ranks are started by the command of the job, with a measuring program instead of the
training.
"""

import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.checking import host_findings, host_report, rank_findings, rank_report
from launch.checking.findings import Finding, Problem
from launch.checking.host_report import HostReport
from launch.dialects.job_shape import Dialect
from launch.nodes import host_commands
from launch.nodes.topology import Topology
from launch.planning.job_plan import Plan
from launch.stop_requests import StopRequests
from resnet.base.errors import UserError

_MEASURING = Path(__file__).resolve().parents[2] / "eval/launched_ranks.py"
# Time for the ranks to start and to measure, of which each rank takes some for itself
# where all read the same disk. Then they end by themselves.
_START_SECONDS, _SECONDS_PER_RANK = 60, 0.25
_ENDING_SECONDS = 15
_ALARMS = (signal.SIGALRM, 128 + signal.SIGALRM)  # Exit codes, by the launcher.
_STALL_SECONDS = 20.0  # After which a lost host ends the measurement.


@dataclass(frozen=True)
class DataFolders:
    """The folders of the data set; empty ones aren't used.

    Attributes:
        data_dir: The folder of the records on each host.
        stage_from: The shared folder whose records a script copies there.
        is_divided: Whether each host gets only a part of them.
    """

    data_dir: str = ""
    stage_from: str = ""
    is_divided: bool = False


@dataclass(frozen=True)
class Preflight:
    """The result of a check.

    Attributes:
        findings: What was found.
        plan: The plan; None if the hosts can't have one.
        hosts_of_ranks: The host of each rank, as far as it is known.
    """

    findings: tuple[Finding, ...]
    plan: Plan | None
    hosts_of_ranks: Mapping[int, str]

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong."""
        return [problem for one in self.findings for problem in one.problems]

    @property
    def can_run(self) -> bool:
        """Whether nothing prevents the job."""
        return self.plan is not None and not _prevents(self.findings)


def check(
    hosts: Sequence[str],
    dialect: Dialect,
    data: DataFolders,
    make_plan: Callable[[Mapping[str, Topology]], Plan],
    requests: StopRequests,
    allows_single_core: bool,
) -> Preflight:
    """Checks the hosts and, unless something is wrong with them, the ranks.

    Args:
        hosts: The hosts of the job; none for this machine.
        dialect: The launcher.
        data: The folders of the data set.
        make_plan: Returns the plan for the hosts, given their topologies.
        requests: The signals that ask to stop.
        allows_single_core: Whether a host may leave the job one of several cores.

    Raises:
        UserError: If there is no such launcher, or no plan for the hosts.
    """
    reports, failures = _host_reports(hosts, dialect, data, requests)
    findings = [host_findings.answers([*reports, *failures], failures)]
    if reports:
        expects_data = bool(data.data_dir)
        findings += host_findings.compare(reports, expects_data, allows_single_core)
    if _prevents(findings) or requests.seen:
        return Preflight(tuple(findings), None, {})
    topologies = {host: report.topology for host, report in reports.items()}
    plan = make_plan(topologies)
    num_bytes = next(iter(reports.values())).records_bytes * bool(data.stage_from)
    if data.is_divided:
        num_bytes //= len(reports)
    findings += host_findings.compare_with_plan(reports, plan, num_bytes)
    if _prevents(findings):
        return Preflight(tuple(findings), plan, {})
    found, hosts_of_ranks = _rank_findings(plan, reports, requests)
    return Preflight((*findings, *found), plan, hosts_of_ranks)


def _prevents(findings: Sequence[Finding]) -> bool:
    return any(problem.prevents_run for one in findings for problem in one.problems)


def _host_reports(
    hosts: Sequence[str],
    dialect: Dialect,
    data: DataFolders,
    requests: StopRequests,
) -> tuple[dict[str, HostReport], dict[str, str]]:
    """Returns the report of each host, and why other hosts have none."""
    if not hosts:
        own = host_report.gather(data.data_dir, data.stage_from or data.data_dir)
        return {platform.node(): own}, {}
    arguments = ["--probe", "--print=host"]
    for name in ("data_dir", "stage_from"):
        if folder := getattr(data, name):
            # Some launchers, such as ssh, start a program in the home folder.
            arguments.append(f"--{name}={os.path.abspath(folder)}")
    answers, failures = host_commands.run_on_hosts(hosts, dialect, arguments, requests)
    reports = {}
    for host, answer in answers.items():
        try:
            reports[host] = host_report.from_json(answer, host)
        except UserError as error:
            failures[host] = str(error)
    return reports, failures


def _rank_findings(
    plan: Plan, reports: Mapping[str, HostReport], requests: StopRequests
) -> tuple[list[Finding], dict[int, str]]:
    """Starts the ranks of a plan; returns what they got, and their hosts."""
    layout = plan.layout
    seconds = round(_START_SECONDS + _SECONDS_PER_RANK * plan.shape.num_processes)
    program = [
        *(sys.executable, str(_MEASURING)),
        f"--num_intra_threads={layout.num_intra_threads}",
        f"--num_inter_threads={layout.num_inter_threads}",
        f"--stall_seconds={_STALL_SECONDS}",
        f"--most_seconds={seconds}",
    ]
    done = requests.run_captured(plan.launched(program), seconds + _ENDING_SECONDS)
    try:
        if done.timed_out or done.exit_code in _ALARMS:
            raise UserError(
                f"the ranks must start and reach each other within {seconds} s; they"
                " haven't. A firewall between the hosts, or a host that was lost, may"
                " be the reason."
            )
        if done.exit_code:
            raise UserError(
                f"the ranks must start and reach each other; `{plan.dialect.PROGRAM}`"
                f" has ended with exit code {done.exit_code}: {done.reason}"
            )
        report = rank_report.parse(done.stdout)
    except UserError as error:
        return [Finding("ranks", "not started", (Problem(str(error)),))], {}
    hosts = {rank.rank: rank.host for rank in report.ranks}
    return rank_findings.compare(report, plan, reports), hosts
