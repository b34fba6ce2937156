"""The hosts of a scheduler's job."""

import pytest

from launch.checking import allocation
from resnet.base.errors import UserError


def test_slurm_lists_the_hosts_of_the_job(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 n2\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert allocation.require(2, {"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    with pytest.raises(UserError, match="n3, must be listed by `scontrol"):
        allocation.require(2, {"SLURM_JOB_NODELIST": "n3"})


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_a_file_lists_a_host_for_each_process(name, tmp_path):
    file = tmp_path / "nodes"
    file.write_text("a\na\nb\nb\n")
    assert allocation.require(2, {name: str(file)}) == ["a", "b"]
    with pytest.raises(UserError, match=r"job has 2\. Name them with --hosts"):
        allocation.require(3, {name: str(file)})


def test_outside_a_job_there_is_this_machine():
    assert allocation.require(1, {}) == []
    with pytest.raises(UserError, match="to check 4 node"):
        allocation.require(4, {})
