"""Compares the reports of the hosts of a job: pure functions."""

from collections.abc import Mapping, Sequence

from launch.checking.findings import Finding, Problem, by_value, differences, names
from launch.checking.host_report import HostReport
from launch.nodes.topology import Topology, cpu_list
from launch.planning.job_plan import Plan

Reports = Mapping[str, HostReport]

_DIGEST = "(SHA-256)"  # At the end of the descriptions of digests.
_PACKAGE = "version of "
_MAY_BE_MISSING = "compiled ops"  # Stock ops are used then.
_DIGEST_CHARACTERS = 16  # Enough to tell two apart.
# For the temporary files of the programs, and what TensorFlow writes there.
_LEAST_SCRATCH_BYTES = 1_000_000_000


def answers(hosts: Sequence[str], failures: Mapping[str, str]) -> Finding:
    """Returns which hosts have answered.

    Args:
        hosts: The hosts of the job.
        failures: Why hosts have not answered, in a sentence each.
    """
    answered = [host for host in hosts if host not in failures]
    found = f"{len(answered)} of {len(hosts)} answered: {names(answered)}"
    problems = [Problem(sentence) for sentence in failures.values()]
    return Finding("hosts", found.rstrip(": "), tuple(problems))


def compare(
    reports: Reports, expects_data: bool, allows_single_core: bool
) -> list[Finding]:
    """Returns what can be said without a plan.

    Args:
        reports: The report of each host, by its name; at least one.
        expects_data: Whether the job has a data set.
        allows_single_core: Whether a host may leave the job one of several cores.
    """
    return [
        _software("versions", reports, is_digest=False),
        _software("code", reports, is_digest=True),
        _data(reports, expects_data),
        _processor(reports),
        _cores(reports, allows_single_core),
        _idleness(reports),
    ]


def compare_with_plan(
    reports: Reports, plan: Plan, bytes_to_stage: int
) -> list[Finding]:
    """Returns whether the hosts have what the plan counts on.

    Args:
        reports: The report of each host, by its name.
        plan: The plan of the job.
        bytes_to_stage: The size of the records that each host is to have.
    """
    return [
        _planned_cores(reports, plan),
        _memory(reports, plan),
        _scratch(reports, bytes_to_stage),
    ]


def _software(name: str, reports: Reports, is_digest: bool) -> Finding:
    """Compares the versions, or the digests, of the software of the hosts."""
    problems, found = [], []
    keys = dict.fromkeys(key for one in reports.values() for key in one.versions)
    for key in (key for key in keys if key.endswith(_DIGEST) == is_digest):
        values = {host: one.versions.get(key, "none") for host, one in reports.items()}
        if text := differences(values):
            problems.append(
                Problem(
                    f"all hosts must have the same {key}; it is {text}. Use the same"
                    " clone and environment on all of them."
                )
            )
            continue
        value = next(iter(values.values()))
        if value == "none" and not key.startswith(_MAY_BE_MISSING):
            problems.append(
                Problem(
                    f"{key.removeprefix(_PACKAGE)} must be installed on the hosts; it"
                    " isn't. Use the environment of `make venv`."
                )
            )
        label = key.removeprefix(_PACKAGE).removesuffix(_DIGEST).strip()
        found.append(f"{label} {value}")
    return Finding(name, ", ".join(found) or "they differ", tuple(problems))


def _data(reports: Reports, is_expected: bool) -> Finding:
    """Compares the manifests of the data set."""
    if not is_expected:
        return Finding("data", "not checked without --data_dir", is_checked=False)
    unreadable = {
        host: one.data_problem for host, one in reports.items() if one.data_problem
    }
    problems = [
        Problem(
            f"the data set must be readable on each host; on {names(hosts)} it isn't:"
            f" {reason}"
        )
        for reason, hosts in by_value(unreadable)
    ]
    digests = {
        host: one.data[:_DIGEST_CHARACTERS]
        for host, one in reports.items()
        if not one.data_problem
    }
    if text := differences(digests):
        problems.append(
            Problem(
                "all hosts must have the same data set; the SHA-256 of its manifest is"
                f" {text}. Copy the records again."
            )
        )
    found = "manifests differ" if text else "no manifest"
    if digests and not text:
        found = f"the same manifest, SHA-256 {next(iter(digests.values()))}"
    return Finding("data", found, tuple(problems))


def _processor(reports: Reports) -> Finding:
    """Compares the models of the processors, and their instruction sets."""
    problems = []
    models = {host: one.topology.cpu_model for host, one in reports.items()}
    sets = {
        host: "+".join(one.topology.instruction_sets) or "none of AVX2 and later"
        for host, one in reports.items()
    }
    for what, values in (("processor", models), ("instruction sets", sets)):
        if text := differences(values):
            problems.append(
                Problem(
                    "the hosts must be equal, since all ranks wait for the slowest; the"
                    f" {what}: {text}. Run a job on the hosts of each kind."
                )
            )
    found = by_value(models)[0][0] or "unknown"
    return Finding("processor", found, tuple(problems))


def _cores(reports: Reports, allows_single_core: bool) -> Finding:
    """Compares the cores that a job may use."""
    problems = []
    cores = {
        host: f"{len(one.topology.cores)} of {one.topology.num_installed_cores}"
        for host, one in reports.items()
    }
    if text := differences(cores):
        problems.append(
            Problem(
                "a job needs the same number of usable cores on each host; it is"
                f" {text}. Ask the scheduler for whole nodes, or plan a job for the"
                " hosts of each kind."
            )
        )
    single = [
        host
        for host, one in reports.items()
        if len(one.topology.cores) == 1 and one.topology.num_installed_cores > 1
    ]
    if single and not allows_single_core:
        problems.append(
            Problem(
                "a cgroup or an affinity mask must leave a job more than one core; on"
                f" {names(single)} it leaves one of"
                f" {reports[single[0]].topology.num_installed_cores}. Ask the scheduler"
                " for whole nodes and turn the launcher's binding off, or plan for one"
                " core by --ranks_per_node=1."
            )
        )
    return Finding("cores", f"{by_value(cores)[0][0]} usable", tuple(problems))


def _idleness(reports: Reports) -> Finding:
    """Finds processors that other programs keep busy."""
    busy = {
        host: cpu_list(one.busy_cpus) for host, one in reports.items() if one.busy_cpus
    }
    problems = [
        Problem(
            f"processors {cpus} of {names(hosts)} are busy with other programs, but the"
            " cores must be idle before a job; `top` there shows which programs.",
            prevents_run=False,
        )
        for cpus, hosts in by_value(busy)
    ]
    found = f"{len(reports) - len(busy)} of {len(reports)} hosts are idle"
    return Finding("load", found, tuple(problems))


def _planned_cores(reports: Reports, plan: Plan) -> Finding:
    """Compares the cores of the hosts with those of the plan."""
    wrong = {
        host: f"{len(one.topology.cores)} cores on {len(one.topology.sockets)} sockets"
        for host, one in reports.items()
        if not _is_like(one.topology, plan.topology)
    }
    planned = plan.topology
    problems = [
        Problem(
            f"the hosts must be those of the plan, with {len(planned.cores)} usable"
            f" cores on {len(planned.sockets)} sockets; {names(hosts)} have {found},"
            " or number them differently. Plan with --probe."
        )
        for found, hosts in by_value(wrong)
    ]
    found = f"{len(reports) - len(wrong)} of {len(reports)} hosts as planned"
    return Finding("plan", found, tuple(problems))


def _is_like(one: Topology, planned: Topology) -> bool:
    """Returns whether a host has the cores that a plan counts on."""
    if planned.has_cpu_numbers:
        return one.cores == planned.cores
    same_count = len(one.cores) == len(planned.cores)
    return same_count and len(one.sockets) == len(planned.sockets)


def _memory(reports: Reports, plan: Plan) -> Finding:
    """Compares the free memory with what the ranks of a host need."""
    least_host = min(reports, key=lambda host: reports[host].free_memory_bytes)
    least = reports[least_host].free_memory_bytes
    found = f"{least / 1e9:.1f} GB free on {least_host}"
    if plan.numbers is None or not least:
        return Finding("memory", found)
    needed = plan.layout.ranks_per_node * plan.numbers.rank_memory_bytes
    short = [host for host, one in reports.items() if one.free_memory_bytes < needed]
    problems = [
        Problem(
            f"the ranks of a host take about {needed / 1e9:.1f} GB of memory;"
            f" {names(short)} have less, such as {least / 1e9:.1f} GB on {least_host}."
            " End other programs there, or use fewer ranks on a host or"
            " --accumulation_steps.",
            prevents_run=False,
        )
    ] * bool(short)
    return Finding(
        "memory", f"{found}, the least; {needed / 1e9:.1f} GB needed", tuple(problems)
    )


def _scratch(reports: Reports, bytes_to_stage: int) -> Finding:
    """Compares the free space with what the job writes on each host."""
    host = min(reports, key=lambda host: reports[host].scratch_bytes)
    least = reports[host]
    found = f"{least.scratch_bytes / 1e9:.1f} GB free in {least.scratch_dir} on {host}"
    problems = []
    full = [
        host
        for host, one in reports.items()
        if one.scratch_bytes < _LEAST_SCRATCH_BYTES
    ]
    if full:
        problems.append(
            Problem(
                f"{least.scratch_dir} must have {_LEAST_SCRATCH_BYTES / 1e9:.0f} GB for"
                f" temporary files; {names(full)} have less. Remove files, or set"
                " TMPDIR to another disk."
            )
        )
    left = {
        host: max(bytes_to_stage - one.staged_bytes, 0) for host, one in reports.items()
    }
    small = [host for host, one in reports.items() if one.data_bytes < left[host]]
    if small:
        most = max(left[host] for host in small)
        problems.append(
            Problem(
                f"--data_dir must have room for {most / 1e9:.1f} GB of records that are"
                f" copied to each host; on {names(small)} it hasn't. Use another disk,"
                " or --shard_by=file."
            )
        )
    if bytes_to_stage:
        host = min(reports, key=lambda host: reports[host].data_bytes - left[host])
        data = reports[host].data_bytes
        found += f"; {data / 1e9:.1f} GB for {left[host] / 1e9:.1f} GB of records"
        found += f" on {host}"
    return Finding("scratch", found, tuple(problems))
