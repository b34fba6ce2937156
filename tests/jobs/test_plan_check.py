"""launch/plan.py --check starts real ranks, and sees what they really got."""

import os
import re

import pytest

from launch import check, hosts, plan, topology
from tests.in_process import Done, run
from tests.jobs.conftest import MPIRUN

pytestmark = pytest.mark.multiprocess

NUM_CORES = len(topology.probe().cores)
RUN = ("--probe", "--check", "--recipe=digits", "--train_batch_size=12")


@pytest.fixture(autouse=True)
def hydra(monkeypatch):
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HYDRA_LAUNCHER", "fork")
    # A starved machine may need more time than the hosts of a job should.
    monkeypatch.setattr(hosts, "SECONDS", 500)
    monkeypatch.setattr(check, "_START_SECONDS", 500)
    monkeypatch.setattr(check, "_SELF_TEST_SECONDS", 500)


def found(done: Done) -> dict[str, tuple[str, str]]:
    """Returns the state of each check, and what was found."""
    table = done.stdout.partition("\nProblems:")[0]
    table = re.sub(r"\n {8,}", " ", table)
    rows = re.findall(r"^(\w+) +(ok|-|problem) +(.*)$", table, re.M)
    return {name: (state, text) for name, state, text in rows}


def assert_no_problem(done: Done) -> None:
    assert "problem" not in {state for state, _ in found(done).values()}, done.stdout
    assert done.returncode == 0


def test_this_machine_and_its_ranks_are_checked(records):
    num_ranks = min(NUM_CORES, 2)
    ranks = f"--ranks_per_node={num_ranks}"
    done = run(plan, *RUN, ranks, f"--data_dir={records}")
    assert_no_problem(done)
    rows = found(done)
    assert rows["data"][1].startswith("the same manifest, SHA-256 ")
    assert rows["cores"][0] == "ok"
    bound = f"{num_ranks} of {num_ranks} ranks on their planned cores: "
    assert rows["binding"][1].startswith(bound)
    assert rows["transport"] == ("-", "one host: shared memory")


@pytest.mark.needs_cores(2)
def test_a_launcher_that_binds_all_ranks_to_a_core_is_found(monkeypatch):
    monkeypatch.setenv("HYDRA_BINDING", "user:0,0")
    done = run(plan, *RUN, "--ranks_per_node=2")
    assert done.returncode == 2
    text = re.sub(r"\s+", " ", done.stdout)
    assert "each rank must get its planned cores; rank 0 on" in text
    assert "has processors 0 of 0 that the launcher left it, not 0" in text


@pytest.mark.parametrize(
    ("transports", "expected"),
    [("tcp,self", "TCP by "), ("all", "no TCP and no port of a fabric: shared memory")],
)
def test_what_carries_the_messages_of_two_hosts_is_found(
    tmp_path, monkeypatch, transports, expected
):
    monkeypatch.setenv("UCX_TLS", transports)
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    done = run(plan, *RUN, f"--hosts={hosts}", "--ranks_per_node=1")
    assert_no_problem(done)
    rows = found(done)
    assert rows["hosts"] == ("ok", "2 of 2 answered: a, b")
    assert rows["transport"][1].startswith(expected)
    assert re.match(r"[\d.e+-]+ Gbit/s each way, \d+ us$", rows["network"][1])
