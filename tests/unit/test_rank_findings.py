"""What is wrong with the ranks of a job, found in stored reports."""

import dataclasses
import json

import pytest

from launch.checking import rank_findings, rank_report
from launch.checking.rank_report import Link
from launch.nodes import topology
from launch.nodes.topology import Interface
from launch.planning import job_plan
from resnet.base.errors import UserError
from resnet.config.recipes import imagenet
from tests.unit import stored_reports
from tests.unit.stored_reports import MESSAGE_BYTES, NODE, changed, ranks

FOUR = ("a", "b", "c", "d")


def plan_for(node=NODE, num_nodes=2, job="train", launcher="mpich", **changes):
    recipe = imagenet.TPU_90EP_24K
    nodes = topology.repeated(node, num_nodes, ())
    request = job_plan.Request(
        job, launcher, recipe, recipe.name, {}, recipe.num_train_examples, **changes
    )
    return job_plan.make(nodes, request)


def findings(report, interfaces=NODE.interfaces, **plan):
    hosts = reports_of(report, interfaces)
    found = rank_findings.compare(report, plan_for(num_nodes=len(hosts), **plan), hosts)
    return {one.name: one for one in found}


def reports_of(report, interfaces=NODE.interfaces):
    """Returns the reports of the hosts on which ranks are."""
    node = {"interfaces": interfaces}
    return {
        rank.host: stored_reports.host(node=node, boot_id=f"machine {rank.host}")
        for rank in report.ranks
    }


def sentences(report, name, **others):
    return [one.sentence for one in findings(report, **others)[name].problems]


def test_ranks_that_got_what_was_planned_have_no_problem():
    found = findings(ranks(FOUR))
    assert [one.state for one in found.values()] == ["ok"] * 4
    assert found["clock"].found == "all within 3.0 ms"
    assert found["transport"].found == "TCP by eth0"


def test_one_host_has_no_network():
    found = findings(ranks(("a",)))
    assert [one.state for one in found.values()] == ["ok", "-", "-", "-"]


def test_a_rank_on_other_cores_is_named():
    report = changed(ranks(), 1, cpus=(0, 1, 2, 3), given_cpus=tuple(range(8)))
    (sentence,) = sentences(report, "binding")
    assert "rank 1 on a has processors 0-3 of 0-7" in sentence
    assert "not 4-7." in sentence
    report = changed(report, 3, cpus=(0, 1))
    assert "not 4-7, and 1 other rank(s)" in sentences(report, "binding")[0]


def test_of_stated_nodes_the_numbers_of_cores_are_compared():
    node = topology.stated(1, 2, 4)
    assert sentences(ranks(), "binding", node=node) == []
    (sentence,) = sentences(changed(ranks(), 2, cpus=(0,)), "binding", node=node)
    assert "rank 2 on b has processors 0 of 0-7" in sentence
    shared = changed(ranks(), 1, cpus=(0, 1, 2, 3))
    (sentence,) = sentences(shared, "binding", node=node)
    assert "on a processor 0 has several" in sentence


def test_more_ranks_on_a_host_than_planned_are_named():
    report = changed(ranks(), 3, local_rank=2)
    (sentence,) = sentences(report, "binding")
    assert "rank 3 on b" in sentence
    assert "not those of one of 2 ranks of a host" in sentence


def test_servers_share_cores():
    report = ranks()
    plan = dataclasses.replace(plan_for(), job="parameter_server")
    found = rank_findings.compare(report, plan, reports_of(report))
    assert found[0].state == "-"


@pytest.mark.parametrize("job", ["train", "parameter_server"])
def test_ranks_on_another_machine_are_named(job):
    report = ranks(FOUR)
    hosts = reports_of(report)
    hosts["b"] = dataclasses.replace(hosts["b"], boot_id="another machine")
    plan = dataclasses.replace(plan_for(num_nodes=4), job=job)
    found = rank_findings.compare(report, plan, hosts)
    (problem,) = found[0].problems
    assert "a host of the job, a, b, c, d; there are ranks on b." in problem.sentence
    assert problem.prevents_run


def test_cores_that_srun_leaves_unused_are_the_reason():
    node = topology.stated(1, 1, 20)
    report = changed(ranks(("a",), node), 1, cpus=tuple(range(7)))
    (sentence,) = sentences(
        report, "binding", node=node, launcher="slurm", ranks_per_node=3
    )
    assert "The reason is that srun gives each of the 3 processes of a" in sentence
    assert "own binding" not in sentence


def test_a_clock_that_differs_is_named():
    report = ranks(FOUR)
    for number in (4, 5):
        report = changed(report, number, clock_offset=-7.25)
    (sentence,) = sentences(report, "clock")
    assert "that of c differs by -7.3 s" in sentence


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
    (sentence,) = sentences(report, "network")
    assert expected in sentence
    assert "b - c" in findings(report)["network"].found
    # Of two hosts, there is no other link to compare with.
    alone = dataclasses.replace(ranks(), links=(Link((0, 2), latency, bandwidth),))
    assert sentences(alone, "network") == []


def test_tcp_beside_a_fabric_is_a_problem():
    interfaces = (*NODE.interfaces, Interface("mlx5_0:1", 200_000))
    (sentence,) = sentences(ranks(), "transport", interfaces=interfaces)
    assert "a, b: MPI uses TCP by eth0, though there is a fabric, mlx5_0:1" in sentence


def test_tcp_by_a_slow_interface_is_a_problem():
    interfaces = (*NODE.interfaces, Interface("eth1", 100_000))
    (sentence,) = sentences(ranks(), "transport", interfaces=interfaces)
    assert "TCP by eth0 with 10 Gbit/s, though eth1 has 100" in sentence
    slower = (*NODE.interfaces, Interface("eth1", 1_000), Interface("eth2", 0))
    assert sentences(ranks(), "transport", interfaces=slower) == []


def test_a_fabric_is_known_by_the_bytes_of_its_port_or_by_its_device():
    interfaces = (*NODE.interfaces, Interface("mlx5_0:1", 200_000))
    few = {"eth0": 1000}
    report = ranks()
    for number in (0, 2):
        sent = {"mlx5_0:1": 2 * MESSAGE_BYTES}
        report = changed(report, number, tcp_bytes=few, port_bytes=sent)
    found = findings(report, interfaces=interfaces)["transport"]
    assert (found.found, found.state) == ("fabric by mlx5_0:1", "ok")
    report = changed(report, 2, port_bytes={}, open_devices=("/dev/cxi0",))
    found = findings(report, interfaces=interfaces)["transport"]
    assert found.found == "fabric by mlx5_0:1 on a, fabric by /dev/cxi0 on b"
    assert found.state == "ok"


def test_messages_that_nobody_has_carried_are_a_problem_between_machines():
    report = changed(changed(ranks(), 0, tcp_bytes={}), 2, tcp_bytes={})
    (sentence,) = sentences(report, "transport")
    assert "on a, b: neither a TCP connection nor the port of a fabric" in sentence
    report = changed(report, 2, boot_id="machine a")
    found = findings(report)["transport"]
    assert found.found == "shared memory, since the hosts are one machine"
    assert found.state == "ok"


def test_a_report_is_read_from_the_output_of_the_ranks():
    report = ranks()
    text = json.dumps(stored_reports.as_printed(report))
    assert rank_report.parse(f"{{a note}}\n{text}\nthe end\n") == report
    for wrong in ("", "no report\n", '{"ranks": []}\n'):
        with pytest.raises(UserError, match="has printed no report"):
            rank_report.parse(wrong)
