"""The communicator: what ranks agree on, in a few bytes, and limits of hosts."""

import dataclasses
import json
import os
import resource
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records.manifest import Manifest, Shard, Split
from resnet.base.errors import UserError
from resnet.data import record_sets
from resnet.distributed import communicator as distributed
from resnet.distributed import links
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.distributed.links import SentBytes
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup
from resnet.watchdog import client
from tests.unit.simulated_ranks import on_all_ranks

NUMBERS_OF_RANKS = (2, 8, 32)
_SPLIT = Split(
    "train",
    tuple(Shard(f"train/{n:05d}", 1251, 10**8, 64 * "a", 1.0) for n in range(1024)),
    (1281024,),
    "train.npy",
    "0",
)
_MANIFEST = Manifest(
    class_names=("a",), first_label=1, splits={"train": _SPLIT}, source={}
)


@pytest.fixture
def record_set(tmp_path):
    """A set of 1,024 record files that aren't looked at."""
    return record_sets.RecordSet(_MANIFEST, tmp_path, tmp_path)


def most_bytes(call) -> list[int]:
    """Returns the bytes of the rank that receives most, by the numbers of ranks."""
    found = []
    for num_ranks in NUMBERS_OF_RANKS:
        results, received = on_all_ranks(call, num_ranks)
        assert results == [results[0]] * num_ranks
        found.append(max(received))
    return found


def test_an_agreement_is_one_number():
    def agree(communicator: Communicator, _: ProcessInfo) -> None:
        with communicator.collective_errors():
            pass

    assert most_bytes(agree) == [8] * len(NUMBERS_OF_RANKS)
    assert most_bytes(lambda ranks, _: ranks.any_rank("")) == [8] * 3


def test_the_comparison_of_a_long_value_takes_a_few_bytes(record_set):
    assert len(repr(_MANIFEST)) > 100_000

    def check(communicator: Communicator, _: ProcessInfo) -> None:
        startup.check_same_settings("set", record_set, "settings", communicator)

    found = most_bytes(check)
    assert found == [found[0]] * 3
    assert found[0] < 200


def test_ranks_that_read_all_files_send_no_list_of_them(record_set, monkeypatch):
    monkeypatch.setattr(record_sets.manifest, "check_files", lambda *_: None)

    def check(communicator: Communicator, _: ProcessInfo) -> int:
        shards = record_sets.check_split(record_set, _SPLIT, "example", communicator)
        assert shards == [tuple(range(1024))] * communicator.num_ranks
        return len(set(map(id, shards)))  # In memory once.

    assert most_bytes(check) == [8] * 3
    assert on_all_ranks(check, 8)[0] == [1] * 8


def test_the_lowest_rank_with_an_error_is_heard():
    def fail(communicator: Communicator, place: ProcessInfo) -> None:
        with communicator.collective_errors():
            if place.rank in (3, 5):
                raise UserError(f"rank {place.rank} has none")

    errors, _ = on_all_ranks(fail, 7)
    assert [type(error) for error in errors] == [AgreedError] * 7
    assert {str(error) for error in errors} == {"rank 3 has none"}
    answers, _ = on_all_ranks(lambda ranks, place: ranks.any_rank(place.rank == 3), 5)
    assert answers == [True] * 5


@pytest.mark.parametrize(
    ("value", "quoted"), [("1.{}", " (1.2 and 1.0)"), (100 * "long " + "{}", ". Give")]
)
def test_the_first_rank_that_differs_is_named(value, quoted):
    def compare(communicator: Communicator, place: ProcessInfo) -> None:
        number = place.rank if place.rank in (2, 4) else 0
        communicator.assert_equal_across_ranks("version", value.format(number))

    errors, _ = on_all_ranks(compare, 6)
    (sentence,) = {str(error) for error in errors}
    assert sentence.startswith("all ranks must have the same version; rank 2 on ")
    assert quoted in sentence
    assert "long" not in sentence


def test_what_only_rank_0_needs_is_sent_to_it_alone():
    gather = on_all_ranks(lambda ranks, place: ranks.gather_objects(place.rank), 4)
    results, received = gather
    assert results == [[0, 1, 2, 3], None, None, None]
    assert received[1:] == [0, 0, 0]


@pytest.mark.parametrize(
    ("allowed", "is_enough"), [(4095, False), (4200, True), (-1, True)]
)
def test_a_limit_that_the_connections_would_exceed_is_refused(
    monkeypatch, allowed, is_enough
):
    assert resource.RLIM_INFINITY == -1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, allowed))
    if is_enough:
        distributed._check_open_files(4096)
        return
    with pytest.raises(UserError, match=r"4128 open files, .* 4096 .* allows 4095"):
        distributed._check_open_files(4096)


def test_all_ranks_hear_of_such_a_limit_before_a_watchdog_starts(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    errors, _ = on_all_ranks(lambda ranks, place: ranks.start_watchdog(place, 5.0), 3)
    assert [type(error) for error in errors] == [AgreedError] * 3
    assert len({str(error) for error in errors}) == 1


@pytest.mark.parametrize(
    ("num_local_ranks", "addresses"), [(4, ("127.0.0.1",)), (2, ("10.0.0.1",))]
)
def test_the_monitor_of_a_job_on_one_node_is_reached_by_loopback(
    monkeypatch, num_local_ranks, addresses
):
    reached = set()
    watchdog = SimpleNamespace(
        port=7, connect=lambda host, addresses, port: reached.add(tuple(addresses))
    )
    monkeypatch.setattr(distributed, "WatchdogClient", lambda *_: watchdog)
    monkeypatch.setattr(client, "own_addresses", lambda: ["10.0.0.1"])

    def start(ranks: Communicator, place: ProcessInfo) -> None:
        place = dataclasses.replace(place, num_local_ranks=num_local_ranks)
        ranks.start_watchdog(place, 5.0)

    on_all_ranks(start, 4)
    assert reached == {addresses}


def test_too_small_a_shared_memory_is_refused_before_mpi_starts(monkeypatch):
    memory = SimpleNamespace(f_blocks=256, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: memory)
    monkeypatch.setattr(distributed.importlib, "import_module", None)
    with pytest.raises(UserError, match=r"at least 20 MiB .* ranks, 4; .* has 1 MiB"):
        distributed.connect(ProcessInfo(0, 8, 0, 4))


MEGABYTE = 1 << 20


@given(st.integers(0, 40))
def test_each_host_is_measured_with_its_two_neighbors_one_at_a_time(number):
    ranks = [3 * index for index in range(number)]
    rounds = links.rounds(ranks)
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
    pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs))
    ring = [frozenset((ranks[i - 1], ranks[i])) for i in range(number)]
    expected = set(ring) if number > 1 else set()
    assert set(pairs) == expected
    assert len(rounds) <= 3


def test_bytes_of_tcp_are_counted_by_interface():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        before = links.read_sent_bytes()
        sender.sendall(bytes(MEGABYTE))
        left = MEGABYTE
        while left:
            left -= len(receiver.recv(left))
        receiver.sendall(b"done")  # With it comes the acknowledgement.
        sender.recv(4)
        sent = links.read_sent_bytes().since(before).tcp_bytes
    assert MEGABYTE <= sent["lo"] < 1.1 * MEGABYTE


def test_bytes_of_a_fabrics_ports_are_four_a_word(tmp_path):
    counter = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    counter.parent.mkdir(parents=True)
    (tmp_path / "proc/self/fd").mkdir(parents=True)
    (tmp_path / "proc/self/fd/9").symlink_to("/dev/infiniband/uverbs0")
    (tmp_path / "proc/self/fd/8").symlink_to("/dev/null")
    counter.write_text("1000\n")
    before = links.read_sent_bytes(tmp_path)
    counter.write_text("1250\n")
    after = links.read_sent_bytes(tmp_path).since(before)
    assert after.port_bytes == {"mlx5_0:1": 1000}
    assert after.open_devices == ("/dev/infiniband/uverbs0",)


def test_only_what_has_grown_is_traffic():
    before = SentBytes({"eth0": 5, "eth1": 3}, {"p:1": 2})
    after = SentBytes({"eth0": 9, "eth1": 3, "eth2": 1}, {"p:1": 2})
    traffic = after.since(before)
    assert traffic == SentBytes({"eth0": 4, "eth2": 1}, {})
    assert json.loads(json.dumps(dataclasses.asdict(traffic)))["port_bytes"] == {}
