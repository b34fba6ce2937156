"""Checks a job before it is started: asks each host, and starts the ranks once.

The ranks are started by the command of the job, with a measuring program instead of the
training.
"""

import os
import platform
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import host_findings, host_report, hosts, rank_findings
from launch.dialects import Dialect
from launch.host_findings import Finding, Problem
from launch.host_report import HostReport
from launch.job_plan import JobPlan
from launch.stop_requests import StopRequests
from launch.topology import Topology
from resnet.base.errors import UserError

_MEASURING = Path(__file__).resolve().parents[1] / "eval/launched_ranks.py"
# Time for the ranks to start and to measure, of which each rank takes some for itself
# where all read the same disk. Then they end by themselves.
_START_SECONDS, _SECONDS_PER_RANK = 60, 0.25
_ENDING_SECONDS = 15
_ALARMS = (signal.SIGALRM, 128 + signal.SIGALRM)  # Exit codes, by the launcher.
_STALL_SECONDS = 20.0  # After which a lost host ends the measurement.
_WIDTH = 80  # The width of most terminals.
_NAME, _STATE = 11, 9  # Columns.


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    findings: tuple[Finding, ...]
    plan: JobPlan | None  # None if the hosts can't have one.
    hosts_of_ranks: Mapping[int, str]  # As far as they are known.

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong."""
        return [problem for finding in self.findings for problem in finding.problems]

    @property
    def can_run(self) -> bool:
        """Whether nothing prevents the job."""
        return self.plan is not None and not _prevents(self.findings)

    def describe(self) -> str:
        """Returns a table of what was found, with a sentence for each problem."""
        lines = [f"{'check':{_NAME}}{'result':{_STATE}}found"]
        for finding in self.findings:
            lines += textwrap.wrap(
                finding.found,
                _WIDTH,
                initial_indent=f"{finding.name:{_NAME}}{finding.state:{_STATE}}",
                subsequent_indent=" " * (_NAME + _STATE),
                break_on_hyphens=False,
            )
        if self.problems:
            lines += ["", "Problems:"]
        for problem in self.problems:
            lines += textwrap.wrap(
                problem.sentence,
                _WIDTH,
                initial_indent="- ",
                subsequent_indent="  ",
                break_on_hyphens=False,
                break_long_words=False,
            )
        return "\n".join(lines)


def check(
    names: Sequence[str],
    dialect: Dialect,
    manifest_dir: str,
    make_plan: Callable[[Mapping[str, Topology]], JobPlan],
    requests: StopRequests,
    allows_single_core: bool,
) -> Checked:
    """Checks the hosts and, unless something is wrong with them, the ranks.

    Raises:
        UserError: If there is no such launcher, or no plan for the hosts.
    """
    reports, failures = _host_reports(names, dialect, manifest_dir, requests)
    findings = [host_findings.answers([*reports, *failures], failures)]
    if reports:
        findings += host_findings.compare(
            reports, bool(manifest_dir), allows_single_core
        )
    if _prevents(findings) or requests.seen:
        return Checked(tuple(findings), None, {})
    plan = make_plan({host: report.topology for host, report in reports.items()})
    findings.append(host_findings.compare_with_plan(reports, plan))
    if _prevents(findings):
        return Checked(tuple(findings), plan, {})
    of_ranks, hosts_of_ranks = _start_ranks(plan, reports, requests)
    return Checked((*findings, *of_ranks), plan, hosts_of_ranks)


def _prevents(findings: Sequence[Finding]) -> bool:
    return any(
        problem.prevents_run for finding in findings for problem in finding.problems
    )


def _host_reports(
    names: Sequence[str], dialect: Dialect, manifest_dir: str, requests: StopRequests
) -> tuple[dict[str, HostReport], dict[str, str]]:
    """Returns the report of each host, and why other hosts have none."""
    if not names:
        return {platform.node(): host_report.gather(manifest_dir)}, {}
    arguments = ["--probe", "--print=host"]
    if manifest_dir:  # Some launchers, such as ssh, start in the home folder.
        arguments.append(f"--data_dir={os.path.abspath(manifest_dir)}")
    answers, failures = hosts.ask(names, dialect, arguments, requests)
    reports = {}
    for host, answer in answers.items():
        try:
            reports[host] = host_report.from_json(answer, host)
        except UserError as error:
            failures[host] = str(error)
    return reports, failures


def _start_ranks(
    plan: JobPlan, reports: Mapping[str, HostReport], requests: StopRequests
) -> tuple[list[Finding], dict[int, str]]:
    """Starts the ranks of a plan; returns what they got, and their hosts."""
    layout = plan.layout
    seconds = round(_START_SECONDS + _SECONDS_PER_RANK * plan.shape.num_processes)
    program = [
        sys.executable,
        str(_MEASURING),
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
                f"the ranks must start and reach each other; `{plan.dialect.program}`"
                f" has ended with exit code {done.exit_code}: {done.reason}"
            )
        report = rank_findings.parse(done.stdout)
    except UserError as error:
        return [Finding("ranks", "not started", (Problem(str(error)),))], {}
    hosts_of_ranks = {rank.rank: rank.host for rank in report.ranks}
    return rank_findings.compare(report, plan, reports), hosts_of_ranks
