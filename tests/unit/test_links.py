"""Which hosts are measured with each other, and what carries their messages."""

import dataclasses
import json
import socket

from hypothesis import given
from hypothesis import strategies as st

from resnet.distributed import links
from resnet.distributed.links import SentBytes

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
