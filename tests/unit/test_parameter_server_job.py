"""The mpirun command of a training on workers and parameter servers."""

import os

import pytest

from launch import parameter_server_job
from tests.in_process import assert_refused, run

TRAINING = ("python", "resnet/resnet_main.py", "--model_dir=M")


def printed(*arguments: str) -> tuple[str, str]:
    done = run(parameter_server_job, "--dry_run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_ranks_for_the_coordinator_servers_and_workers_go_round_the_hosts(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("node1\n# of the second rack\nnode2\n")
    command, message = printed(
        *("-n", "3", "-s", "2", "-H", str(hosts), "--", *TRAINING),
        "--sync_mode=async",
    )
    assert command == (
        "mpirun -np 6 -ppn 1 -hosts node1,node2 python resnet/resnet_main.py"
        " --model_dir=M --sync_mode=async --num_ps=2"
    )
    assert message == ""


@pytest.mark.parametrize(
    "flags", [("--sync_mode", "bsp"), (), ("--recipe=cifar10_inception_bsp",)]
)
def test_a_synchronous_training_has_no_servers(flags):
    command, message = printed("-n", "3", "-s", "2", "--", *TRAINING, *flags)
    assert command == " ".join(["mpirun -np 3", *TRAINING, *flags])
    assert "-s 2 has no effect" in message


def test_a_recipe_can_be_asynchronous():
    recipe = "--recipe=cifar10_inception_async"
    command, _ = printed("-n", "2", "--", *TRAINING, recipe)
    assert command == " ".join(["mpirun -np 4", *TRAINING, recipe, "--num_ps=1"])
    command, _ = printed("-n", "2", "--", *TRAINING, recipe, "--sync_mode=bsp")
    assert command.startswith("mpirun -np 2 ")


def test_the_number_of_servers_is_that_of_the_training():
    training = (*TRAINING, "--sync_mode=async", "--num_ps=3")
    expected = ["mpirun -np 6", *training, "--num_ps=3"]
    for servers in ((), ("-s", "3")):
        command, _ = printed("-n", "2", *servers, "--", *training)
        assert command == " ".join(expected)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "-n must be at least 1; got None."),
        (("-n", "2", "-s", "0"), "--num_servers must be at least 1; got 0."),
        (("-n", "2"), "expected the command of a training after `--`"),
        (("-n", "2", "-H", "/nowhere", "--", *TRAINING), "can't be read; /nowhere"),
        (("-n", "2", "--", *TRAINING, "--recipe=none"), "none"),
        (
            ("-n", "2", "-s", "2", "--", *TRAINING, "--num_ps=3"),
            "-s and the training's --num_ps must agree; got 2 and 3.",
        ),
        (("-n", "2", "--", *TRAINING, "--num_ps=x"), "of at least 1; got 'x'"),
    ],
)
def test_mistakes_are_refused(arguments, sentence):
    assert_refused(run(parameter_server_job, *arguments), sentence)


def test_a_host_that_cannot_be_reached_is_refused(tmp_path, monkeypatch):
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\ncase $2 in bad) exit 1;; esac\n")
    fake.chmod(0o755)
    started: list[str] = []

    def become(program: str, words: list[str]) -> None:
        started.extend(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hosts = tmp_path / "hosts"
    hosts.write_text("good\nbad\n")
    arguments = ("-n", "2", "-H", str(hosts), "--", *TRAINING, "--sync_mode=async")
    done = run(parameter_server_job, *arguments)
    assert_refused(done, "all hosts must be reachable; bad can't be")
    assert not started
    hosts.write_text("good\n")
    done = run(parameter_server_job, *arguments)
    assert done.returncode == 0, done.stderr
    assert started == done.stdout.split()
    assert started[:6] == ["mpirun", "-np", "4", "-ppn", "1", "-hosts"]
