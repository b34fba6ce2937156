"""The mpirun command of a training on workers and parameter servers."""

import os

import pytest

from launch import parameter_server_job
from tests.in_process import assert_refused, run, succeeded
from tests.processes import write_program

TRAINING = ("python", "resnet/resnet_main.py", "--model_dir=M")
ASYNC = "--recipe=cifar10_inception_async"


@pytest.mark.parametrize(
    ("flags", "training", "num_ranks", "num_servers"),
    [
        (("-n", "3", "-s", "2"), ("--sync_mode=async",), 6, 2),
        (("-n", "2"), (ASYNC,), 4, 1),  # A recipe can be asynchronous.
        (("-n", "2", "-s", "3"), ("--sync_mode=async", "--num_ps=3"), 6, 3),
        # A synchronous training has no servers.
        (("-n", "3", "-s", "2"), (), 3, 0),
        (("-n", "3", "-s", "2"), (ASYNC, "--sync_mode=bsp"), 3, 0),
    ],
)
def test_there_are_ranks_for_the_coordinator_servers_and_workers(
    flags, training, num_ranks, num_servers
):
    done = run(parameter_server_job, "--dry_run", *flags, "--", *TRAINING, *training)
    assert done.returncode == 0, done.stderr
    words = ["mpirun", "-np", str(num_ranks), *TRAINING, *training]
    words += [f"--num_ps={num_servers}"] * (num_servers > 0)
    assert done.stdout == f"{' '.join(words)}\n"
    assert ("-s 2 has no effect" in done.stderr) == (num_servers == 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "-n must be at least 1; got None."),
        (("-n", "2"), "expected the command of a training after `--`"),
        (("-n", "2", "-H", "/nowhere", "--", *TRAINING), "can't be read; /nowhere"),
        (("-n", "2", "-s", "2", "--", *TRAINING, "--num_ps=3"), "got 2 and 3."),
        (("-n", "2", "--", *TRAINING, "--num_ps=x"), "of at least 1; got 'x'"),
    ],
)
def test_mistakes_are_refused(arguments, sentence):
    assert_refused(run(parameter_server_job, *arguments), sentence)


def test_ranks_go_round_the_hosts_and_one_that_cannot_be_reached_is_refused(
    tmp_path, monkeypatch
):
    write_program(tmp_path / "mpirun", "#!/bin/sh\ncase $2 in bad) exit 1;; esac\n")
    started: list[str] = []

    def become(program: str, words: list[str]) -> None:
        started.extend(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hosts = tmp_path / "hosts"
    hosts.write_text("good\n# of the second rack\nbad\n")
    arguments = ("-n", "2", "-H", str(hosts), "--", *TRAINING, ASYNC)
    done = run(parameter_server_job, *arguments)
    assert_refused(done, "all hosts must be reachable; bad can't be")
    assert not started
    hosts.write_text("good\nbetter\n")
    done = succeeded(run(parameter_server_job, *arguments))
    assert started == done.stdout.split()
    assert started[1:7] == ["-np", "4", "-ppn", "1", "-hosts", "good,better"]
