"""launch/plan.py --check and --run: reports, sentences and exit codes."""

import dataclasses
import json
import platform
import re
from typing import Any

import pytest

from launch import check, hosts, job_plan, plan, topology
from launch.check import Link, Rank, RankReport, Traffic
from launch.hosts import HostReport
from launch.job_plan import JobFlags
from launch.topology import Interface
from resnet.base.errors import UserError
from resnet.config.command_line import JobSettings
from resnet.config.recipes import imagenet
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.selftest.verdict import CoreResult, HostResult
from resnet.watchdog import history
from tests.in_process import Done, assert_refused, run
from tests.processes import write_program
from tests.unit import machine_trees, planning_page

# It answers for the host that it is asked to run on, and for the ranks of a job; any
# other command is the job itself.
STUB = """#!/bin/sh
cd '{folder}'
case "$*" in
*selftest.py*) cat "cores_of_$2" ;;
*launched_ranks.py*) cat ranks; exit $(cat code) ;;
*--print=host*) cat "$2" 2>/dev/null || {{ echo "ssh: no route" >&2; exit 255; }} ;;
*" true") exit 0 ;;
*) echo "$*" >> job
   printf '\\0361 b\\037job\\n'
   printf '\\0361 b\\037to err\\n' >&2
   exit 75 ;;
esac
"""
# 4 ranks in all, two on each host.
FLAGS = ("--probe", "--recipe=tpu_90ep_24k", "--data_dir=/records", "--model_dir=/m")
RUN = ("--run", *FLAGS[2:])
MESSAGE_BYTES = 40_000_000
NODE = dataclasses.replace(
    topology.stated(1, 2, 4, memory_bytes=64_000_000_000),
    has_cpu_numbers=True,
    cpu_model="Test CPU",
    interfaces=(Interface("eth0", 10_000),),
)
# What the cores of a host have computed, by kernels that the table doesn't have.
CORES = HostResult(
    "node",
    "AVX2",
    "GCC 99",
    tuple(CoreResult(cpu, cpu, 0, {"updates": 7}, 1.0) for cpu in range(2)),
)
VERSIONS = {
    "version of tensorflow": "2.21.0",
    "compiled ops (SHA-256)": "aaaa",
    "code of this project (SHA-256)": "bbbb",
}


def host(node: dict[str, Any] | None = None, **changes: Any) -> HostReport:
    """Returns the report of a healthy host, with changes."""
    changed = dataclasses.replace(NODE, **(node or {}))
    report = HostReport(changed, "machine a", dict(VERSIONS), "d" * 64, "")
    return dataclasses.replace(report, **changes)


def with_version(name: str, value: str) -> HostReport:
    return host(versions={**VERSIONS, name: value})


def ranks(names=("a", "b"), node=NODE, changes=None) -> RankReport:
    """Returns the report of two ranks on each host, with changes by their numbers.

    Each rank has half of the cores, and the first of a host sends by TCP.
    """
    half = len(node.cores) // 2
    everything = tuple(cpu for core in node.cores for cpu in core.cpus)
    of_ranks = []
    for number in range(2 * len(names)):
        index, local_rank = divmod(number, 2)
        sent = {} if local_rank else {"eth0": 2 * MESSAGE_BYTES}
        rank = Rank(
            rank=number,
            local_rank=local_rank,
            host=names[index],
            boot_id=f"machine {names[index]}",
            given_cpus=everything,
            cpus=everything[half:] if local_rank else everything[:half],
            traffic=Traffic(sent, {}, ()),
        )
        of_ranks.append(dataclasses.replace(rank, **(changes or {}).get(number, {})))
    links = [
        Link((2 * index, 2 * ((index + 1) % len(names))), 20e-6, 1.1e9)
        for index in range(len(names) - (len(names) == 2))
    ]
    return RankReport(tuple(of_ranks), tuple(links) * (len(names) > 1), MESSAGE_BYTES)


@pytest.fixture
def check_hosts(tmp_path, monkeypatch):
    """Returns `check_hosts(reports, ranks, *flags)`, which checks by reports."""
    write_program(tmp_path / "mpirun", STUB.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts_file = tmp_path / "hosts"

    def check_them(
        reports, got=None, *others: str, code: int = 0, words=(), cores=None
    ) -> Done:
        hosts_file.write_text("".join(f"{name}\n" for name in reports))
        for name, report in reports.items():
            if isinstance(report, HostReport):
                report = dataclasses.replace(report, boot_id=f"machine {name}")
                report = f"Welcome\n{json.dumps(dataclasses.asdict(report))}\n"
            if report is not None:
                (tmp_path / name).write_text(report)
            of_cores = (cores or {}).get(name, CORES)
            text = json.dumps(dataclasses.asdict(of_cores))
            (tmp_path / f"cores_of_{name}").write_text(f"{text}\n")
        report = dataclasses.asdict(got or ranks(tuple(reports)))
        (tmp_path / "ranks").write_text(f"{{a note}}\n{json.dumps(report)}\nend\n")
        (tmp_path / "code").write_text(str(code))
        flags = (*FLAGS, f"--hosts={hosts_file}", *(others or ("--check",)))
        return run(plan, *(words or flags))

    check_them.job = tmp_path / "job"
    return check_them


def sentences(done: Done) -> str:
    """Returns the problems that were found, in one line."""
    return re.sub(r"\s+", " ", done.stdout.partition("Problems:")[2])


def test_hosts_without_a_problem_end_with_zero(check_hosts):
    done = check_hosts({"a": host(), "b": host()})
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Problems" not in done.stdout
    rows = re.findall(r"^(\w+) +(ok|-|problem) ", done.stdout, re.M)
    names = ("hosts", "versions", "data", "cores", "binding", "network", "transport")
    assert rows == [(name, "ok") for name in names]
    for found in (
        "2 of 2 answered: a, b",
        "4 of 4 ranks on their planned cores: 0-3 | 4-7",
        "8.8 Gbit/s each way, 20 us",
        "TCP by eth0",
    ):
        assert found in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (None, "`mpirun -hosts b -np 1 ...`, which ended with exit code 255: ssh: no"),
        ("Hello from b\n", "b must answer with a report of itself; it has answered"),
        (
            with_version("version of tensorflow", "2.20.0"),
            "same version of tensorflow; it is 2.21.0 on a, c, 2.20.0 on b.",
        ),
        (host(data="e" * 64), f"manifest is {'d' * 16} on a, c, {'e' * 16} on b"),
        (host(data="", data_problem="no disk"), "on b it isn't: no disk"),
        (host({"cores": NODE.cores[:6]}), "differ in their usable cores (8 and 6)"),
    ],
)
def test_a_host_that_prevents_the_job_is_named(check_hosts, other, sentence):
    done = check_hosts({"a": host(), "b": other, "c": host()}, None, "--run")
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert "\nnetwork" not in done.stdout  # The ranks are not started.
    assert not check_hosts.job.exists()


def test_a_core_that_computes_otherwise_prevents_the_job(check_hosts):
    wrong = dataclasses.replace(CORES.cores[1], digests={"updates": 8})
    other = dataclasses.replace(CORES, cores=(CORES.cores[0], wrong))
    done = check_hosts({"a": host(), "b": host()}, None, "--run", cores={"b": other})
    assert done.returncode == 2
    assert "core 1 of socket 0 on b (processor 1) must compute" in sentences(done)
    assert "\nnetwork" not in done.stdout
    assert not check_hosts.job.exists()
    without = HostResult("node", "NONE", "")
    done = check_hosts({"a": host()}, cores={"a": without})
    assert done.returncode == 0
    assert "not tested, without the compiled ops" in done.stdout


def test_a_package_that_no_host_has_is_named(check_hosts):
    without = with_version("version of tensorflow", "none")
    done = check_hosts({"a": without, "b": without})
    assert done.returncode == 2
    assert "tensorflow must be installed on the hosts; it isn't." in sentences(done)
    without = with_version("compiled ops (SHA-256)", "none")
    assert check_hosts({"a": without, "b": without}).returncode == 0


@pytest.mark.parametrize(
    ("got", "code", "sentence"),
    [
        (None, 3, "`mpirun` has ended with exit code 3"),
        (
            ranks(changes={1: {"cpus": (0,), "given_cpus": (0,)}}),
            0,
            "rank 0 on a has processors 0-3 of 0-7 that the launcher left it",
        ),
        (ranks(("a", "login")), 0, "of the job, a, b; there are ranks on login."),
    ],
)
def test_what_the_ranks_got_may_prevent_the_job(check_hosts, got, code, sentence):
    done = check_hosts({"a": host(), "b": host()}, got, "--run", code=code)
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert not check_hosts.job.exists()


def test_a_job_runs_under_the_supervisor_with_labels(check_hosts, tmp_path):
    """Although a network is slow, which is said before."""
    fabric = (*NODE.interfaces, Interface("mlx5_0:1", 200_000))
    reports = dict.fromkeys("ab", host({"interfaces": fabric}))
    failure = tmp_path / "m" / history.FAILURE_FILE
    failure.parent.mkdir()
    failure.touch()
    flags = ("--run", "--seed=7", f"--model_dir={failure.parent}")
    done = check_hosts(reports, None, *flags)
    assert "a, b: MPI uses TCP by eth0, though there is a fabric" in sentences(done)
    words = check_hosts.job.read_text()
    assert words.startswith("-prepend-pattern \x1e%r %h\x1f -f ")
    assert "-np 4 -ppn 2 " in words
    assert "/resnet/resnet_main.py --recipe" in words
    assert "--seed=7" in words
    assert "[1 b] job\n" in done.stdout
    assert "[1 b] to err\n" in done.stderr
    assert done.returncode == REQUEUE_EXIT_CODE
    assert not failure.exists()  # The supervisor removes it before a start.
    assert check_hosts(reports).returncode == 2  # A check alone tells of any problem.


@pytest.mark.parametrize(
    "words", planning_page.commands(are_starting=True), ids=" ".join
)
def test_the_commands_of_the_page_run(words, check_hosts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = check_hosts({"node0": host(), "node1": host()}, words=words[2:])
    code = REQUEUE_EXIT_CODE if "--run" in words else 0  # That of the job's stand-in.
    assert done.returncode == code, done


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--check", "--num_nodes=3"), "to check nodes (3), their names must be known"),
        (("--run",), "--data_dir is required"),
        ((*RUN, "--bundle=b.tar.gz"), "to the nodes; got --bundle=b.tar.gz"),
    ],
)
def test_what_is_missing_is_one_sentence(flags, message, monkeypatch):
    for name in ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    assert_refused(run(plan, "--probe", "--recipe=digits", *flags), message)


def test_hosts_of_pbs_look_for_relative_folders_where_the_planner_was_called(
    tmp_path, monkeypatch
):
    ssh = tmp_path / "ssh"  # It starts commands in the home folder, as ssh does.
    write_program(
        ssh, f"#!/bin/sh\ncd /\necho \"$*\" >> '{tmp_path}/asked'\nexit 255\n"
    )
    (tmp_path / "hosts").write_text("a\nb\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    flags = ("--launcher=pbs", "--hosts=hosts", "--data_dir=one", "--stage_from=../two")
    run(plan, "--probe", "--check", "--recipe=digits", *flags)
    for asked in (tmp_path / "asked").read_text().splitlines():
        assert f"--data_dir={tmp_path.parent}/two" in asked.split()


def findings(report, interfaces=NODE.interfaces, node=NODE, job="train", **flags):
    """Returns what is found of the ranks of a job, by its name."""
    recipe = imagenet.TPU_90EP_24K
    reports = {
        rank.host: host({"interfaces": interfaces}, boot_id=f"machine {rank.host}")
        for rank in report.ranks
    }
    asked = job_plan.Request(
        flags=JobFlags(**flags),
        threads=JobSettings(),
        recipe=recipe,
        recipe_flag=recipe.name,
        overrides={},
        num_train_examples=recipe.num_train_examples,
    )
    made = job_plan.make(topology.repeated(node, len(reports), ()), asked)
    changed = dataclasses.replace(asked, flags=JobFlags(job=job, **flags))
    made = dataclasses.replace(made, request=changed)
    return {of.name: of for of in check.compare_ranks(report, made, reports)}


def problem(report, name, **others) -> str:
    """Returns the only problem of one kind; empty if there is none."""
    problems = findings(report, **others)[name].problems
    assert len(problems) <= 1
    return "".join(problems)


def test_one_host_has_no_network():
    states = [finding.state for finding in findings(ranks(("a",))).values()]
    assert states == ["ok", "-", "-"]
    assert findings(ranks(), job="parameter_server")["binding"].state == "-"


STATED = topology.stated(1, 2, 4)
FIRST_FOUR = {"cpus": (0, 1, 2, 3), "given_cpus": tuple(range(8))}


@pytest.mark.parametrize(
    ("changes", "node", "sentence"),
    [
        ({1: {"cpus": (4, 5)}}, NODE, "rank 1 on a has processors 4-5 of 0-7 that the"),
        (
            {1: {"cpus": (4,)}, 3: {"cpus": (5,)}},
            NODE,
            "not 4-7; other ranks likewise: 1",
        ),
        ({3: {"local_rank": 2}}, NODE, "not 0 for itself"),
        # Of stated nodes the numbers of cores are compared.
        ({}, STATED, ""),
        ({2: {"cpus": (0,)}}, STATED, "rank 2 on b has processors 0 of 0-7"),
        ({1: FIRST_FOUR}, STATED, "rank 0 on a has processors 0-3 of 0-7 that the"),
    ],
)
def test_ranks_on_other_cores_are_named(changes, node, sentence):
    found = problem(ranks(changes=changes), "binding", node=node)
    assert sentence in found
    assert bool(sentence) == bool(found)


@pytest.mark.parametrize(
    ("latency", "bandwidth", "expected"),
    [
        (20e-6, 0.5e9, "median is 8.8 Gbit/s, and there is 4 Gbit/s (b - c)"),
        (90e-6, 1.1e9, "median is 20 us, and there is 90 us (b - c)"),
    ],
)
def test_a_link_that_is_slower_than_the_others_is_named(latency, bandwidth, expected):
    report = ranks(("a", "b", "c", "d"))
    links = list(report.links)
    links[1] = Link((2, 4), latency, bandwidth)
    report = dataclasses.replace(report, links=tuple(links))
    assert expected in problem(report, "network")
    assert "b - c" in findings(report)["network"].text
    # Of two hosts, there is no other link to compare with.
    alone = dataclasses.replace(ranks(), links=(Link((0, 2), latency, bandwidth),))
    assert problem(alone, "network") == ""


PORT = {"traffic": Traffic({"eth0": 1000}, {"mlx5_0:1": 2 * MESSAGE_BYTES}, ())}
DEVICE = {"traffic": Traffic({}, {}, ("/dev/cxi0",))}
NOTHING = {"traffic": Traffic({}, {}, ())}
FABRIC = Interface("mlx5_0:1", 200_000)


@pytest.mark.parametrize(
    ("changes", "more", "found", "sentence"),
    [
        ({}, (FABRIC,), "TCP by eth0", "though there is a fabric, mlx5_0:1"),
        ({}, (Interface("eth1", 100_000),), "TCP by eth0", "though eth1 has 100"),
        ({}, (Interface("eth1", 1_000), Interface("eth2", 0)), "TCP by eth0", ""),
        ({0: PORT, 2: PORT}, (FABRIC,), "fabric by mlx5_0:1", ""),
        ({0: PORT, 2: DEVICE}, (), "by mlx5_0:1 on a, fabric by /dev/cxi0 on b", ""),
        ({0: NOTHING, 2: NOTHING}, (FABRIC,), "shared memory, or unknown", ""),
    ],
)
def test_what_has_carried_the_messages_is_compared_with_the_fastest(
    changes, more, found, sentence
):
    report, interfaces = ranks(changes=changes), (*NODE.interfaces, *more)
    assert found in findings(report, interfaces)["transport"].text
    told = problem(report, "transport", interfaces=interfaces)
    assert sentence in told
    assert bool(sentence) == bool(told)


def test_a_report_of_ranks_that_is_none_is_refused():
    for wrong in ("", "no report\n", '{"ranks": []}\n'):
        with pytest.raises(UserError, match="has printed no report"):
            check.parse_ranks(wrong)


def test_the_report_of_a_machine(records, tmp_path):
    root = machine_trees.two_sockets(tmp_path)
    report = hosts.report_of_this("", root)
    assert len(report.topology.cores) == 48
    assert "version of numpy" in report.versions
    assert (report.data, report.data_problem) == ("", "")
    assert report.boot_id == platform.node()
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("bc49\n")  # The random number of this boot.
    assert hosts.report_of_this("", root).boot_id == "bc49"


def test_the_manifest_is_compared_without_where_it_came_from(records, tmp_path):
    digest = hosts.report_of_this(str(records)).data
    assert len(digest) == 64
    text = (records / "manifest.json").read_text()
    changed = text.replace('"source": {', '"source": {"of": "another folder", ')
    assert changed != text
    (tmp_path / "manifest.json").write_text(changed)
    assert hosts.report_of_this(str(tmp_path)).data == digest
    (tmp_path / "manifest.json").unlink()
    for folder, problem in (
        (tmp_path, f"{tmp_path} has no manifest"),
        (tmp_path / "none", "does not exist"),
    ):
        assert problem in hosts.report_of_this(str(folder)).data_problem


def test_slurm_lists_the_hosts_of_the_job(tmp_path, monkeypatch):
    write_program(
        tmp_path / "scontrol",
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 n2\n',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hosts.of_job(2, {"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    with pytest.raises(UserError, match="n3, must be listed by `scontrol"):
        hosts.of_job(2, {"SLURM_JOB_NODELIST": "n3"})


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_a_file_of_the_scheduler_lists_a_host_for_each_process(name, tmp_path):
    file = tmp_path / "nodes"
    file.write_text("a\na\nb\nb\n")
    assert hosts.of_job(2, {name: str(file)}) == ["a", "b"]
    with pytest.raises(UserError, match=r"job has 2\. Name them with --hosts"):
        hosts.of_job(3, {name: str(file)})
    assert hosts.of_job(1, {}) == []
    with pytest.raises(UserError, match=r"to check nodes \(4\)"):
        hosts.of_job(4, {})
