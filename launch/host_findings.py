"""Compares the reports of the hosts of a job: pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.host_report import HostReport
from launch.job_plan import JobPlan
from launch.topology import Topology, cpu_list
from resnet.base.text import first_of

Reports = Mapping[str, HostReport]

_DIGEST = "(SHA-256)"  # At the end of the descriptions of digests.
_PACKAGE = "version of "
_MAY_BE_MISSING = "compiled ops"  # Stock ops are used then.
_DIGEST_CHARACTERS = 16  # Enough to tell two apart.


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, and what to do, as one sentence."""

    sentence: str
    prevents_run: bool = True  # Rather than make the job slower.


@dataclass(frozen=True)
class Finding:
    """A line of the table: what is checked, and what is there, in a few words."""

    name: str
    found: str
    problems: tuple[Problem, ...] = ()
    is_checked: bool = True

    @property
    def state(self) -> str:
        """The result in a word."""
        if self.problems:
            return "problem"
        return "ok" if self.is_checked else "-"


def by_value(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns each different value with its hosts, the most frequent one first."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    return sorted(hosts.items(), key=lambda item: -len(item[1]))


def differences(values: Mapping[str, str]) -> str:
    """Returns the different values and their hosts; empty if all are equal."""
    different = by_value(values)
    if len(different) < 2:
        return ""
    return ", ".join(f"{value} on {first_of(hosts)}" for value, hosts in different)


def answers(hosts: Sequence[str], failures: Mapping[str, str]) -> Finding:
    """Returns which hosts have answered, given why others haven't."""
    answered = [host for host in hosts if host not in failures]
    found = f"{len(answered)} of {len(hosts)} answered: {first_of(answered)}"
    return Finding("hosts", found.rstrip(": "), tuple(map(Problem, failures.values())))


def compare(
    reports: Reports, expects_data: bool, allows_single_core: bool
) -> list[Finding]:
    """Returns what can be said without a plan of at least one host."""
    return [
        _software("versions", reports, is_digest=False),
        _software("code", reports, is_digest=True),
        _data(reports, expects_data),
        _processor(reports),
        _cores(reports, allows_single_core),
        _idleness(reports),
    ]


def _software(name: str, reports: Reports, is_digest: bool) -> Finding:
    """Compares the versions, or the digests, of the software of the hosts."""
    problems, found = [], []
    keys = dict.fromkeys(key for report in reports.values() for key in report.versions)
    for key in (key for key in keys if key.endswith(_DIGEST) == is_digest):
        values = {host: of.versions.get(key, "none") for host, of in reports.items()}
        value = next(iter(values.values()))
        if text := differences(values):
            problems.append(
                f"all hosts must have the same {key}; it is {text}. Use the same clone"
                " and environment on all of them."
            )
            continue
        if value == "none" and not key.startswith(_MAY_BE_MISSING):
            problems.append(
                f"{key.removeprefix(_PACKAGE)} must be installed on the hosts; it"
                " isn't. Use the environment of `make venv`."
            )
        label = key.removeprefix(_PACKAGE).removesuffix(_DIGEST).strip()
        found.append(f"{label} {value}")
    found_text = ", ".join(found) or "they differ"
    return Finding(name, found_text, tuple(map(Problem, problems)))


def _data(reports: Reports, is_expected: bool) -> Finding:
    """Compares the manifests of the data set."""
    if not is_expected:
        return Finding("data", "not checked without --data_dir", is_checked=False)
    unreadable = {host: of.data_problem for host, of in reports.items()}
    problems = [
        f"the data set must be readable on each host; on {first_of(hosts)} it isn't:"
        f" {reason}"
        for reason, hosts in by_value(unreadable)
        if reason
    ]
    digests = {
        host: report.data[:_DIGEST_CHARACTERS]
        for host, report in reports.items()
        if not report.data_problem
    }
    found = "no manifest"
    if text := differences(digests):
        found = "manifests differ"
        problems.append(
            "all hosts must have the same data set; the SHA-256 of its manifest is"
            f" {text}. Copy the records again."
        )
    elif digests:
        found = f"the same manifest, SHA-256 {next(iter(digests.values()))}"
    return Finding("data", found, tuple(map(Problem, problems)))


def _processor(reports: Reports) -> Finding:
    """Compares the models of the processors, and their instruction sets."""
    models = {host: report.topology.cpu_model for host, report in reports.items()}
    sets = {
        host: "+".join(report.topology.instruction_sets) or "none of AVX2 and later"
        for host, report in reports.items()
    }
    problems = [
        Problem(
            "the hosts must be equal, since all ranks wait for the slowest; the"
            f" {what}: {text}. Run a job on the hosts of each kind."
        )
        for what, values in (("processor", models), ("instruction sets", sets))
        if (text := differences(values))
    ]
    return Finding("processor", by_value(models)[0][0] or "unknown", tuple(problems))


def _cores(reports: Reports, allows_single_core: bool) -> Finding:
    """Compares the cores that a job may use."""
    problems = []
    nodes = {host: report.topology for host, report in reports.items()}
    cores = {
        host: f"{len(node.cores)} of {node.num_installed_cores}"
        for host, node in nodes.items()
    }
    if text := differences(cores):
        problems.append(
            "a job needs the same number of usable cores on each host; it is"
            f" {text}. Ask the scheduler for whole nodes, or plan a job for the"
            " hosts of each kind."
        )
    single = [
        host
        for host, node in nodes.items()
        if len(node.cores) == 1 < node.num_installed_cores
    ]
    if single and not allows_single_core:
        problems.append(
            "a cgroup or an affinity mask must leave a job more than one core; on"
            f" {first_of(single)} it leaves one of"
            f" {nodes[single[0]].num_installed_cores}."
            " Ask the scheduler for whole nodes and turn the launcher's binding off, or"
            " plan for one core by --ranks_per_node=1."
        )
    found = f"{by_value(cores)[0][0]} usable"
    return Finding("cores", found, tuple(map(Problem, problems)))


def _idleness(reports: Reports) -> Finding:
    """Finds processors that other programs keep busy."""
    busy = {host: cpu_list(of.busy_cpus) for host, of in reports.items()}
    problems = [
        Problem(
            f"processors {cpus} of {first_of(hosts)} are busy with other programs, but"
            " the cores must be idle before a job; `top` there shows which programs.",
            prevents_run=False,
        )
        for cpus, hosts in by_value(busy)
        if cpus
    ]
    num_idle = list(busy.values()).count("")
    found = f"{num_idle} of {len(reports)} hosts are idle"
    return Finding("load", found, tuple(problems))


def compare_with_plan(reports: Reports, plan: JobPlan) -> Finding:
    """Returns whether the hosts have the cores that the plan counts on."""
    planned = plan.topology
    wrong = {
        host: f"{len(node.cores)} cores on {len(node.sockets)} sockets"
        for host, node in ((host, of.topology) for host, of in reports.items())
        if not _is_like(node, planned)
    }
    problems = [
        Problem(
            f"the hosts must be those of the plan, with {len(planned.cores)} usable"
            f" cores on {len(planned.sockets)} sockets; {first_of(hosts)} have {found},"
            " or number them differently. Plan with --probe."
        )
        for found, hosts in by_value(wrong)
    ]
    found = f"{len(reports) - len(wrong)} of {len(reports)} hosts as planned"
    return Finding("plan", found, tuple(problems))


def _is_like(node: Topology, planned: Topology) -> bool:
    if planned.has_cpu_numbers:
        return node.cores == planned.cores
    same_count = len(node.cores) == len(planned.cores)
    return same_count and len(node.sockets) == len(planned.sockets)
