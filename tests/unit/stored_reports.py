"""Reports of hosts and ranks, as a healthy cluster would give them."""

import dataclasses
from typing import Any

from launch.checking.host_report import HostReport
from launch.checking.rank_report import Link, Rank, RankReport
from launch.nodes import topology
from launch.nodes.topology import Interface, Topology

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
MESSAGE_BYTES = 40_000_000


def host(**changes: Any) -> HostReport:
    """Returns the report of a host, with changes; `node` changes its topology."""
    node = dataclasses.replace(NODE, **changes.pop("node", {}))
    report = HostReport(
        topology=node,
        boot_id="machine a",
        versions=dict(VERSIONS),
        data="d" * 64,
        data_problem="",
        records_bytes=140_000_000_000,
        staged_bytes=0,
        busy_cpus=(),
        free_memory_bytes=60_000_000_000,
        scratch_dir="/tmp",
        scratch_bytes=500_000_000_000,
        data_bytes=500_000_000_000,
    )
    return dataclasses.replace(report, **changes)


def versions(**changes: str) -> dict[str, str]:
    """Returns versions of which some are others, by the last word of their names."""
    keys = {key.split()[2 if "version" in key else 0]: key for key in VERSIONS}
    return {**VERSIONS, **{keys[name]: value for name, value in changes.items()}}


def ranks(
    hosts: tuple[str, ...] = ("a", "b"), node: Topology = NODE, **changes: Any
) -> RankReport:
    """Returns the report of two ranks on each host, with changes of rank 1's.

    Each rank has half of the cores, and sends by TCP.
    """
    half = len(node.cores) // 2
    parts = (node.cores[:half], node.cores[half:])
    everything = tuple(cpu for core in node.cores for cpu in core.cpus)
    found = []
    for number in range(2 * len(hosts)):
        index, local_rank = divmod(number, 2)
        found.append(
            Rank(
                rank=number,
                local_rank=local_rank,
                host=hosts[index],
                boot_id=f"machine {hosts[index]}",
                given_cpus=everything,
                cpus=tuple(cpu for core in parts[local_rank] for cpu in core.cpus),
                clock_offset=0.001 * index,
                tcp_bytes={} if local_rank else {"eth0": 2 * MESSAGE_BYTES},
                port_bytes={},
                open_devices=(),
            )
        )
    found[1] = dataclasses.replace(found[1], **changes)
    links = [
        Link((2 * index, 2 * ((index + 1) % len(hosts))), 20e-6, 1.1e9)
        for index in range(len(hosts) - (len(hosts) == 2))
    ]
    return RankReport(tuple(found), tuple(links) * (len(hosts) > 1), MESSAGE_BYTES)


def changed(report: RankReport, number: int, **changes: Any) -> RankReport:
    """Returns a report in which a rank is changed."""
    found = list(report.ranks)
    found[number] = dataclasses.replace(found[number], **changes)
    return dataclasses.replace(report, ranks=tuple(found))


def as_printed(report: RankReport) -> dict[str, Any]:
    """Returns a report of ranks as the measuring program prints it."""
    values = dataclasses.asdict(report)
    for one in values["ranks"]:
        names = ("tcp_bytes", "port_bytes", "open_devices")
        one["traffic"] = {name: one.pop(name) for name in names}
    return values
