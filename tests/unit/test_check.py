"""launch/plan.py --check and --run: reports, sentences and exit codes."""

import dataclasses
import json
import platform
import re
from typing import Any

import pytest

from launch import host_report, hosts, job_plan, plan, rank_findings, topology
from launch.host_report import HostReport
from launch.rank_findings import Link, Rank, RankReport, Traffic
from launch.topology import Interface
from resnet.base.errors import UserError
from resnet.config.recipes import imagenet
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import history
from tests.in_process import Done, assert_refused, run
from tests.unit import machine_trees, planning_page

# It answers for the host that it is asked to run on, and for the ranks of a job; any
# other command is the job itself.
STUB = """#!/bin/sh
cd '{folder}'
case "$*" in
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
RUN = FLAGS[2:]
FOUR = ("a", "b", "c", "d")
MESSAGE_BYTES = 40_000_000
NODE = dataclasses.replace(
    topology.stated(1, 2, 4, memory_bytes=64_000_000_000),
    has_cpu_numbers=True,
    cpu_model="Test CPU",
    instruction_sets=("avx2", "avx512f"),
    interfaces=(Interface("eth0", 10_000),),
)
VERSIONS = {
    "version of Python": "3.11.7",
    "version of tensorflow": "2.21.0",
    "compiled ops (SHA-256)": "aaaa",
    "code of this project (SHA-256)": "bbbb",
}


def host(node: dict[str, Any] | None = None, **changes: Any) -> HostReport:
    """Returns the report of a healthy host, with changes."""
    changed = dataclasses.replace(NODE, **(node or {}))
    report = HostReport(changed, "machine a", dict(VERSIONS), "d" * 64, "", ())
    return dataclasses.replace(report, **changes)


def with_version(name: str, value: str) -> dict[str, Any]:
    return {"versions": {**VERSIONS, name: value}}


def ranks(names=("a", "b"), node=NODE, changes=None) -> RankReport:
    """Returns the report of two ranks on each host, with changes by their numbers.

    Each rank has half of the cores, and the first of a host sends by TCP.
    """
    half = len(node.cores) // 2
    parts = (node.cores[:half], node.cores[half:])
    everything = tuple(cpu for core in node.cores for cpu in core.cpus)
    found = []
    for number in range(2 * len(names)):
        index, local_rank = divmod(number, 2)
        cpus = tuple(cpu for core in parts[local_rank] for cpu in core.cpus)
        sent = {} if local_rank else {"eth0": 2 * MESSAGE_BYTES}
        rank = Rank(
            *(number, local_rank, names[index], f"machine {names[index]}"),
            *(everything, cpus, Traffic(sent, {}, ())),
        )
        found.append(dataclasses.replace(rank, **(changes or {}).get(number, {})))
    links = [
        Link((2 * index, 2 * ((index + 1) % len(names))), 20e-6, 1.1e9)
        for index in range(len(names) - (len(names) == 2))
    ]
    return RankReport(tuple(found), tuple(links) * (len(names) > 1), MESSAGE_BYTES)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Returns `check(hosts, ranks, *flags)`, which checks hosts by their reports."""
    stub = tmp_path / "mpirun"
    stub.write_text(STUB.format(folder=tmp_path))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts_file = tmp_path / "hosts"

    def check_them(reports, got=None, *others: str, code: int = 0, words=()) -> Done:
        hosts_file.write_text("".join(f"{name}\n" for name in reports))
        for name, report in reports.items():
            if report is not None:
                report = dataclasses.replace(report, boot_id=f"machine {name}")
                (tmp_path / name).write_text(f"{host_report.to_json(report)}\n")
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


def test_hosts_without_a_problem_end_with_zero(check):
    done = check({"a": host(), "b": host()})
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Problems" not in done.stdout
    checked = "hosts versions code data processor cores load plan binding network"
    assert re.findall(r"^(\w+) +(ok|-|problem) ", done.stdout, re.M) == [
        (name, "ok") for name in (*checked.split(), "transport")
    ]
    for found in (
        "2 of 2 answered: a, b",
        "4 of 4 ranks on their planned cores: 0-3 | 4-7",
        "8.8 Gbit/s each way, 20 us",
        "TCP by eth0",
    ):
        assert found in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (None, "b can't be probed by `mpirun -hosts b -np 1 ...`, which ended with"),
        (None, "exit code 255: ssh: no route"),
        (
            with_version("version of tensorflow", "2.20.0"),
            "same version of tensorflow; it is 2.21.0 on a, c, 2.20.0 on b.",
        ),
        (
            with_version("code of this project (SHA-256)", "cccc"),
            "bbbb on a, c, cccc on b",
        ),
        ({"data": "e" * 64}, f"manifest is {'d' * 16} on a, c, {'e' * 16} on b"),
        ({"data": "", "data_problem": "no disk"}, "on b it isn't: no disk"),
        ({"node": {"cpu_model": "Old CPU"}}, "Test CPU on a, c, Old CPU on b"),
        (
            {"node": {"instruction_sets": ("avx2",)}},
            "avx2+avx512f on a, c, avx2 on b",
        ),
        ({"node": {"cores": NODE.cores[:6]}}, "it is 8 of 8 on a, c, 6 of 8 on b"),
        ({"node": {"cores": NODE.cores[:1]}}, "on b it leaves one of 8"),
    ],
)
def test_a_host_that_prevents_the_job_is_named(check, changes, sentence):
    other = None if changes is None else host(**changes)
    done = check({"a": host(), "b": other, "c": host()}, None, "--run")
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert "\nnetwork" not in done.stdout  # The ranks are not started.
    assert not check.job.exists()


def test_a_single_core_of_each_host_can_be_meant(check):
    single = host(node={"cores": NODE.cores[:1]})
    done = check({"a": single, "b": single}, None, "--check", "--ranks_per_node=1")
    assert re.search(r"^cores +ok +1 of 8 usable$", done.stdout, re.M)
    assert "more than one core" not in sentences(done)
    assert "\nbinding" in done.stdout  # The ranks were started.


def test_a_package_that_no_host_has_is_named(check):
    without = host(**with_version("version of tensorflow", "none"))
    done = check({"a": without, "b": without})
    assert done.returncode == 2
    assert "tensorflow must be installed on the hosts; it isn't." in sentences(done)
    without = host(**with_version("compiled ops (SHA-256)", "none"))
    assert check({"a": without, "b": without}).returncode == 0


def test_hosts_that_are_not_those_of_the_plan_are_named(check, tmp_path):
    node, names = tmp_path / "node.json", tmp_path / "hosts"
    node.write_text(topology.to_json(topology.stated(1, 2, 24)))  # The login node's.
    check({"a": host(), "b": host()})
    done = run(plan, *FLAGS[1:], f"--topology={node}", f"--hosts={names}", "--check")
    assert done.returncode == 2
    expected = "those of the plan, with 48 usable cores on 2 sockets; a, b have 8"
    assert expected in sentences(done)


def test_ranks_that_cannot_start_are_said(check):
    done = check({"a": host(), "b": host()}, code=3)
    assert done.returncode == 2
    assert "`mpirun` has ended with exit code 3" in sentences(done)


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (
            ranks(changes={1: {"cpus": (0,), "given_cpus": (0,)}}),
            "rank 1 on a has processors 0 of 0 that the launcher left it, not 4-7",
        ),
        (ranks(("a", "login")), "of the job, a, b; there are ranks on login. Choose"),
    ],
)
def test_what_the_ranks_got_may_prevent_the_job(check, got, sentence):
    done = check({"a": host(), "b": host()}, got, "--run")
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert not check.job.exists()


def test_an_answer_that_is_no_report_is_named(check, tmp_path):
    (tmp_path / "b").write_text("Welcome to b\n")
    done = check({"a": host(), "b": None})
    assert done.returncode == 2
    expected = "b must answer with a report of itself; it has answered 'Welcome to b'"
    assert expected in sentences(done)


def test_a_job_runs_under_the_supervisor_with_labels(check, tmp_path):
    """Although a core is busy, which is said before."""
    reports = {"a": host(), "b": host(busy_cpus=(0, 1, 5))}
    failure = tmp_path / "m" / history.FAILURE_FILE
    failure.parent.mkdir()
    failure.touch()
    done = check(reports, None, "--run", "--seed=7", f"--model_dir={failure.parent}")
    assert "processors 0-1,5 of b are busy" in sentences(done)
    words = check.job.read_text()
    assert words.startswith("-prepend-pattern \x1e%r %h\x1f -f ")
    assert "-np 4 -ppn 2 " in words
    assert "/resnet/resnet_main.py --recipe" in words
    assert "--seed=7" in words
    assert "[1 b] job\n" in done.stdout
    assert "[1 b] to err\n" in done.stderr
    assert done.returncode == REQUEUE_EXIT_CODE
    assert not failure.exists()  # The supervisor removes it before a start.
    assert check(reports).returncode == 2  # A check alone tells of any problem.


@pytest.mark.parametrize(
    "words", planning_page.commands(are_starting=True), ids=" ".join
)
def test_the_commands_of_the_page_run(words, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = check({"node0": host(), "node1": host()}, words=words[2:])
    code = REQUEUE_EXIT_CODE if "--run" in words else 0  # That of the job's stand-in.
    assert done.returncode == code, done


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--check", "--num_nodes=3"), "to check 3 node(s), their names must be known"),
        (("--run",), "--data_dir is required"),
        (("--run", *RUN, "--stage_from=/s"), "without copying records to the nodes"),
        (("--run", *RUN, "--bundle=b.tar.gz"), "without copying programs to the nodes"),
        (("--check", "--sockets=2", "--cores_per_socket=8"), "got several"),
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
    ssh.write_text(f"#!/bin/sh\ncd /\necho \"$*\" >> '{tmp_path}/asked'\nexit 255\n")
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("a\nb\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    flags = ("--launcher=pbs", "--hosts=hosts", "--data_dir=one", "--stage_from=../two")
    run(plan, "--probe", "--check", "--recipe=digits", *flags)
    for asked in (tmp_path / "asked").read_text().splitlines():
        assert f"--data_dir={tmp_path.parent}/two" in asked.split()


def findings(report, interfaces=NODE.interfaces, node=NODE, job="train", **request):
    """Returns what is found of the ranks of a job, by its name."""
    recipe = imagenet.TPU_90EP_24K
    reports = {
        rank.host: host({"interfaces": interfaces}, boot_id=f"machine {rank.host}")
        for rank in report.ranks
    }
    asked = job_plan.Request(
        *("train", request.pop("launcher", "mpich"), recipe, recipe.name, {}),
        *(recipe.num_train_examples,),
        **request,
    )
    made = job_plan.make(topology.repeated(node, len(reports), ()), asked)
    changed = dataclasses.replace(made.request, job=job)
    made = dataclasses.replace(made, request=changed)
    return {of.name: of for of in rank_findings.compare(report, made, reports)}


def problem(report, name, **others) -> str:
    """Returns the only problem of one kind; empty if there is none."""
    problems = findings(report, **others)[name].problems
    assert len(problems) <= 1
    return problems[0].sentence if problems else ""


def test_one_host_has_no_network():
    states = [finding.state for finding in findings(ranks(("a",))).values()]
    assert states == ["ok", "-", "-"]
    assert findings(ranks(), job="parameter_server")["binding"].state == "-"


STATED = topology.stated(1, 2, 4)
FIRST_FOUR = {"cpus": (0, 1, 2, 3), "given_cpus": tuple(range(8))}


@pytest.mark.parametrize(
    ("changes", "node", "sentence"),
    [
        ({1: FIRST_FOUR}, NODE, "rank 1 on a has processors 0-3 of 0-7 that the"),
        (
            {1: FIRST_FOUR, 3: {"cpus": (0, 1)}},
            NODE,
            "not 4-7, and 1 other rank(s) likewise.",
        ),
        ({3: {"local_rank": 2}}, NODE, "not those of one of 2 ranks of a host"),
        # Of stated nodes the numbers of cores are compared.
        ({}, STATED, ""),
        ({2: {"cpus": (0,)}}, STATED, "rank 2 on b has processors 0 of 0-7"),
        ({1: FIRST_FOUR}, STATED, "on a processor 0 has several"),
    ],
)
def test_ranks_on_other_cores_are_named(changes, node, sentence):
    found = problem(ranks(changes=changes), "binding", node=node)
    assert sentence in found
    assert bool(sentence) == bool(found)


def test_cores_that_srun_leaves_unused_are_the_reason():
    node = topology.stated(1, 1, 20)
    report = ranks(("a",), node, {1: {"cpus": tuple(range(7))}})
    slurm = {"launcher": "slurm", "ranks_per_node": 3}
    sentence = problem(report, "binding", node=node, **slurm)
    assert "The reason is that srun gives each of the 3 processes of a" in sentence
    assert "own binding" not in sentence


@pytest.mark.parametrize(
    ("latency", "bandwidth", "expected"),
    [
        (20e-6, 0.5e9, "b - c has 4 Gbit/s, and the median is 8.8"),
        (90e-6, 1.1e9, "b - c has 90 us, and the median is 20"),
    ],
)
def test_a_link_that_is_slower_than_the_others_is_named(latency, bandwidth, expected):
    report = ranks(FOUR)
    links = list(report.links)
    links[1] = Link((2, 4), latency, bandwidth)
    report = dataclasses.replace(report, links=tuple(links))
    assert expected in problem(report, "network")
    assert "b - c" in findings(report)["network"].found
    # Of two hosts, there is no other link to compare with.
    alone = dataclasses.replace(ranks(), links=(Link((0, 2), latency, bandwidth),))
    assert problem(alone, "network") == ""


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((Interface("mlx5_0:1", 200_000),), "though there is a fabric, mlx5_0:1"),
        ((Interface("eth1", 100_000),), "by eth0 with 10 Gbit/s, though eth1 has 100"),
        ((Interface("eth1", 1_000), Interface("eth2", 0)), ""),
    ],
)
def test_tcp_beside_something_faster_is_a_problem(more, sentence):
    interfaces = (*NODE.interfaces, *more)
    found = problem(ranks(), "transport", interfaces=interfaces)
    assert sentence in found
    assert bool(sentence) == bool(found)


PORT = {"traffic": Traffic({"eth0": 1000}, {"mlx5_0:1": 2 * MESSAGE_BYTES}, ())}
DEVICE = {"traffic": Traffic({}, {}, ("/dev/cxi0",))}
NOTHING = {"traffic": Traffic({}, {}, ())}


@pytest.mark.parametrize(
    ("changes", "found", "sentence"),
    [
        ({0: PORT, 2: PORT}, "fabric by mlx5_0:1", ""),
        (
            {0: PORT, 2: DEVICE},
            "fabric by mlx5_0:1 on a, fabric by /dev/cxi0 on b",
            "",
        ),
        (
            {0: NOTHING, 2: NOTHING},
            "unknown",
            "on a, b: neither a TCP connection nor the port of a fabric",
        ),
        (
            {0: NOTHING, 2: {**NOTHING, "boot_id": "machine a"}},
            "shared memory, since the hosts are one machine",
            "",
        ),
    ],
)
def test_what_has_carried_the_messages_is_found(changes, found, sentence):
    report = ranks(changes=changes)
    interfaces = (*NODE.interfaces, Interface("mlx5_0:1", 200_000))
    assert findings(report, interfaces)["transport"].found == found
    assert sentence in problem(report, "transport", interfaces=interfaces)


def test_a_report_of_ranks_that_is_none_is_refused():
    for wrong in ("", "no report\n", '{"ranks": []}\n'):
        with pytest.raises(UserError, match="has printed no report"):
            rank_findings.parse(wrong)


def gather(root, monkeypatch, later: str = "", data_dir: Any = "") -> HostReport:
    """Returns the report of a machine whose /proc/stat changes meanwhile."""

    def wait(seconds: float) -> None:
        if later:
            (root / "proc/stat").write_text(later)

    monkeypatch.setattr(host_report.time, "sleep", wait)
    return host_report.gather(str(data_dir), root)


def test_a_report_of_a_host_survives_json(tmp_path, monkeypatch):
    root = machine_trees.two_sockets(tmp_path)
    report = gather(root, monkeypatch)
    text = host_report.to_json(report)
    assert host_report.from_json(f"Welcome\n{text}\n", "a") == report
    assert report.topology.cpu_model == "Test CPU"
    assert len(report.topology.cores) == 48
    assert "version of numpy" in report.versions
    for wrong in ("", "no JSON", "{}", '{"topology": {}}'):
        with pytest.raises(UserError, match="a must answer with a report"):
            host_report.from_json(wrong, "a")


STAT = "cpu  9 9 9 9\ncpu0 {0} 0 {0} {1} {1} 0 0 0 0 0\ncpu1 0 0 0 900 0 0 0 {2} 0 0\n"


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [
        ((40, 30, 0), (0,)),  # 80 ticks of work, 60 of idleness and waiting.
        ((20, 30, 0), ()),
        ((0, 50, 50), (1,)),  # A virtual machine that has to wait for its host.
    ],
)
def test_processors_that_are_busy_or_stolen_are_named(
    ticks, expected, tmp_path, monkeypatch
):
    root = machine_trees.write(tmp_path, [(0, 0, 0), (0, 0, 1)], memory_kib=1000)
    (root / "proc/stat").write_text(STAT.format(0, 0, 0))
    assert gather(root, monkeypatch, STAT.format(*ticks)).busy_cpus == expected


def test_the_manifest_is_compared_without_where_it_came_from(
    records, tmp_path, monkeypatch
):
    root = machine_trees.single_core(tmp_path)
    report = gather(root, monkeypatch, data_dir=records)
    assert len(report.data) == 64
    other = tmp_path / "other"
    other.mkdir()
    text = (records / "manifest.json").read_text()
    assert '"source": {' in text
    changed = text.replace('"source": {', '"source": {"of": "another folder", ')
    (other / "manifest.json").write_text(changed)
    assert gather(root, monkeypatch, data_dir=other).data == report.data
    missing = gather(root, monkeypatch, data_dir=tmp_path / "none")
    assert "is not a folder" in missing.data_problem
    (tmp_path / "none").mkdir()
    empty = gather(root, monkeypatch, data_dir=tmp_path / "none")
    assert empty.data_problem == f"{tmp_path}/none has no manifest"


def test_a_machine_is_known_by_the_random_number_of_its_boot(tmp_path, monkeypatch):
    root = machine_trees.write(tmp_path, [(0, 0, 0)])
    assert gather(root, monkeypatch).boot_id == platform.node()
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("bc49\n")
    assert gather(root, monkeypatch).boot_id == "bc49"


def test_slurm_lists_the_hosts_of_the_job(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 n2\n')
    scontrol.chmod(0o755)
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
    with pytest.raises(UserError, match="to check 4 node"):
        hosts.of_job(4, {})
