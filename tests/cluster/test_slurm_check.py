"""launch/plan.py --check in Debian's Slurm, on two nodes that are both this machine."""

import re
import subprocess
import sys

import pytest

from tests.cluster.conftest import WITHOUT_LIBRARIES
from tests.jobs.test_plan_check import assert_no_problem, found

pytestmark = pytest.mark.cluster

RUN = ("--probe", "--check", "--recipe=digits", "--train_batch_size=12")
SLURM = ("--launcher=slurm", "--srun_mpi=pmi2")
# The planner, with as much time for hosts and ranks as a starved machine may need.
PROGRAM = """
import sys
from launch import plan
from resnet.base import program
from launch import check
from launch import hosts
hosts.SECONDS = check._START_SECONDS = check._SELF_TEST_SECONDS = 500
sys.exit(program.run(plan.main))
"""


def checked(
    slurm, num_nodes: int, *flags: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Checks a job in an allocation of its own."""
    place = ("--partition=both", f"--nodes={num_nodes}", "--exclusive")
    words = (*RUN, *SLURM, f"--num_nodes={num_nodes}", *flags)
    environment = {**slurm.environment, WITHOUT_LIBRARIES: "yes", **variables}
    salloc = ("salloc", *place, sys.executable, "-c", PROGRAM, *words)
    return slurm.run(*salloc, env=environment)


def test_two_nodes_and_the_network_between_them_are_checked(slurm, records):
    flags = ("--ranks_per_node=1", f"--data_dir={records}")
    done = checked(slurm, 2, *flags, UCX_TLS="tcp,self")
    assert_no_problem(done)
    rows = found(done)
    assert rows["hosts"] == ("ok", "2 of 2 answered: here, there")
    assert rows["data"][1].startswith("the same manifest, SHA-256 ")
    assert rows["binding"][1].startswith("2 of 2 ranks on their planned cores: ")
    assert re.match(r"[\d.e+-]+ Gbit/s each way, \d+ us$", rows["network"][1])
    assert rows["transport"][1].startswith("TCP by ")


def test_another_number_of_nodes_than_those_of_the_job_is_refused(slurm):
    done = checked(slurm, 1, "--num_nodes=2")
    assert done.returncode == 2
    assert "to check nodes (2), their names must be known" in done.stderr
