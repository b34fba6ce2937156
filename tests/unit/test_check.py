"""launch/plan.py --check and --run with stored reports: sentences and exit codes."""

import dataclasses
import json
import re

import pytest

from launch import plan
from launch.checking import host_report
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import failure_file
from tests.in_process import Done, assert_refused, run
from tests.unit import planning_page, stored_reports

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
ISNT = "it isn't"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Returns `check(hosts, ranks, *flags)`, which checks hosts by their reports."""
    stub = tmp_path / "mpirun"
    stub.write_text(STUB.format(folder=tmp_path))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts_file = tmp_path / "hosts"

    def check_them(
        hosts, ranks=None, *others: str, code: int = 0, words: tuple[str, ...] = ()
    ) -> Done:
        hosts_file.write_text("".join(f"{name}\n" for name in hosts))
        for name, report in hosts.items():
            if report is not None:
                report = dataclasses.replace(report, boot_id=f"machine {name}")
                (tmp_path / name).write_text(f"{host_report.to_json(report)}\n")
        got = ranks or stored_reports.ranks(tuple(hosts))
        report = stored_reports.as_printed(got)
        (tmp_path / "ranks").write_text(f"a note\n{json.dumps(report)}\n")
        (tmp_path / "code").write_text(str(code))
        flags = (*FLAGS, f"--hosts={hosts_file}", *(others or ("--check",)))
        return run(plan, *(words or flags))

    check_them.job = tmp_path / "job"
    return check_them


def host(**changes):
    return stored_reports.host(**changes)


def sentences(done: Done) -> str:
    """Returns the problems that were found, in one line."""
    text = done.stdout.partition("Problems:")[2]
    return re.sub(r"\s+", " ", text)


def test_hosts_without_a_problem_end_with_zero(check):
    done = check({"a": host(), "b": host()})
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Problems" not in done.stdout
    assert re.findall(r"^(\w+) +(ok|-|problem) ", done.stdout, re.M) == [
        (name, "ok")
        for name in (
            *("hosts", "versions", "code", "data", "processor", "cores", "load"),
            *("plan", "memory", "scratch", "binding", "clock", "network"),
            "transport",
        )
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
            {"versions": stored_reports.versions(tensorflow="2.20.0")},
            "same version of tensorflow; it is 2.21.0 on a, c, 2.20.0 on b.",
        ),
        ({"versions": stored_reports.versions(code="cccc")}, "bbbb on a, c, cccc on b"),
        ({"data": "e" * 64}, f"manifest is {'d' * 16} on a, c, {'e' * 16} on b"),
        ({"data": "", "data_problem": "no disk"}, f"on b {ISNT}: no disk"),
        ({"node": {"cpu_model": "Old CPU"}}, "Test CPU on a, c, Old CPU on b"),
        (
            {"node": {"instruction_sets": ("avx2",)}},
            "avx2+avx512f on a, c, avx2 on b",
        ),
        (
            {"node": {"cores": stored_reports.NODE.cores[:6]}},
            "it is 8 of 8 on a, c, 6 of 8 on b",
        ),
        (
            {"node": {"cores": stored_reports.NODE.cores[:1]}},
            "on b it leaves one of 8",
        ),
        ({"scratch_bytes": 1_000}, "must have 1 GB for temporary files; b have less"),
    ],
)
def test_a_host_that_prevents_the_job_is_named(check, changes, sentence):
    other = None if changes is None else host(**changes)
    done = check({"a": host(), "b": other, "c": host()})
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert "\nnetwork" not in done.stdout  # The ranks are not started.


def test_a_single_core_of_each_host_can_be_meant(check):
    one = host(node={"cores": stored_reports.NODE.cores[:1]})
    done = check({"a": one, "b": one}, None, "--check", "--ranks_per_node=1")
    assert re.search(r"^cores +ok +1 of 8 usable$", done.stdout, re.M)
    assert "more than one core" not in sentences(done)
    assert "\nbinding" in done.stdout  # The ranks were started.


def test_a_host_that_prevents_the_job_is_not_used(check):
    for other in (None, host(data="e" * 64)):
        done = check({"a": host(), "b": other}, None, "--run")
        assert done.returncode == 2
        assert "Problems:" in done.stdout
        assert not check.job.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"busy_cpus": (0, 1, 5)}, "processors 0-1,5 of b are busy"),
        ({"free_memory_bytes": 10**9}, "b have less, such as 1.0 GB on b"),
    ],
)
def test_a_host_that_slows_the_job_is_named_and_the_job_runs(check, changes, sentence):
    done = check({"a": host(), "b": host(**changes)})
    assert done.returncode == 2
    assert sentence in sentences(done)
    assert "\nnetwork" in done.stdout


def test_a_package_that_no_host_has_is_named(check):
    without = host(versions=stored_reports.versions(tensorflow="none"))
    done = check({"a": without, "b": without})
    assert done.returncode == 2
    assert "tensorflow must be installed on the hosts; it isn't." in sentences(done)
    without = host(versions=stored_reports.versions(compiled="none"))
    assert check({"a": without, "b": without}).returncode == 0


def test_the_records_that_are_staged_must_fit(check):
    hosts = {"a": host(), "b": host(data_bytes=10**9)}
    staged = ("--check", "--stage_from=/shared")
    done = check(hosts, None, *staged)
    assert done.returncode == 2
    assert "140.0 GB of records that are copied to each host; on b" in sentences(done)
    hosts = {"a": host(), "b": host(data_bytes=70 * 10**9)}
    assert check(hosts, None, *staged, "--shard_by=file").returncode == 0


def test_records_that_are_staged_already_need_no_room(check):
    there = host(data_bytes=10**9, staged_bytes=139 * 10**9)
    done = check({"a": host(), "b": there}, None, "--check", "--stage_from=/shared")
    assert done.returncode == 0, done.stdout
    text = re.sub(r"\s+", " ", done.stdout)
    assert "; 1.0 GB for 1.0 GB of records on b" in text


def test_hosts_that_are_not_those_of_the_plan_are_named(check, tmp_path):
    node = tmp_path / "node.json"
    node.write_text(
        plan.topology.to_json(plan.topology.stated(1, 2, 24))  # The login node's.
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    check({"a": host(), "b": host()})
    done = run(plan, *FLAGS[1:], f"--topology={node}", f"--hosts={hosts}", "--check")
    assert done.returncode == 2
    assert "those of the plan, with 48 usable cores on 2 sockets; a, b have 8" in (
        sentences(done)
    )


def test_ranks_that_cannot_start_are_said(check):
    done = check({"a": host(), "b": host()}, code=3)
    assert done.returncode == 2
    assert "`mpirun` has ended with exit code 3" in sentences(done)


def test_what_the_ranks_got_is_compared(check):
    wrong = stored_reports.ranks(cpus=(0,), given_cpus=(0,))
    done = check({"a": host(), "b": host()}, wrong)
    assert done.returncode == 2
    assert "rank 1 on a has processors 0 of 0 that the launcher left it, not 4-7" in (
        sentences(done)
    )
    check({"a": host(), "b": host()}, wrong, "--run")
    assert not check.job.exists()


def test_ranks_on_another_machine_are_named(check):
    hosts = {"a": host(), "b": host()}
    done = check(hosts, stored_reports.ranks(("a", "login")), "--run")
    assert done.returncode == 2
    assert "of the job, a, b; there are ranks on login. Choose the" in sentences(done)
    assert not check.job.exists()


def test_an_answer_that_is_no_report_is_named(check, tmp_path):
    (tmp_path / "b").write_text("Welcome to b\n")
    done = check({"a": host(), "b": None})
    assert done.returncode == 2
    assert "b must answer with a report of itself; it has answered 'Welcome to b'" in (
        sentences(done)
    )


def test_a_job_runs_under_the_supervisor_with_labels(check, tmp_path):
    """Although a core is busy, which is said before."""
    hosts = {"a": host(), "b": host(busy_cpus=(3,))}
    failure = tmp_path / "m" / failure_file.FILE
    failure.parent.mkdir()
    failure.touch()
    done = check(hosts, None, "--run", "--seed=7", f"--model_dir={failure.parent}")
    assert "processors 3 of b are busy" in sentences(done)
    words = check.job.read_text()
    assert words.startswith("-prepend-pattern \x1e%r %h\x1f -f ")
    assert "-np 4 -ppn 2 " in words
    assert "/resnet/resnet_main.py --recipe" in words
    assert "--seed=7" in words
    assert "[1 b] job\n" in done.stdout
    assert "[1 b] to err\n" in done.stderr
    assert done.returncode == REQUEUE_EXIT_CODE
    assert not failure.exists()  # The supervisor removes it before a start.


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


def test_a_launcher_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    done = run(plan, *FLAGS, f"--hosts={hosts}", "--check", "--launcher=slurm")
    assert_refused(done, "Slurm needs the program srun, which can't be run")


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
        assert f"--data_dir={tmp_path}/one" in asked.split()
        assert f"--stage_from={tmp_path.parent}/two" in asked.split()
