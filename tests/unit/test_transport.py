"""What carries the messages of a process, as the kernel says."""

import socket

from resnet.distributed import transport
from resnet.distributed.transport import Traffic

MEGABYTE = 1 << 20


def test_bytes_of_tcp_are_counted_by_interface():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        before = transport.read()
        sender.sendall(bytes(MEGABYTE))
        left = MEGABYTE
        while left:
            left -= len(receiver.recv(left))
        receiver.sendall(b"done")  # With it comes the acknowledgement.
        sender.recv(4)
        sent = transport.read().since(before).tcp_bytes
    assert MEGABYTE <= sent["lo"] < 1.1 * MEGABYTE


def test_bytes_of_a_fabrics_ports_are_four_a_word(tmp_path):
    counter = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    counter.parent.mkdir(parents=True)
    (tmp_path / "proc/self/fd").mkdir(parents=True)
    (tmp_path / "proc/self/fd/9").symlink_to("/dev/infiniband/uverbs0")
    (tmp_path / "proc/self/fd/8").symlink_to("/dev/null")
    counter.write_text("1000\n")
    before = transport.read(tmp_path)
    counter.write_text("1250\n")
    after = transport.read(tmp_path).since(before)
    assert after.port_bytes == {"mlx5_0:1": 1000}
    assert after.open_devices == ("/dev/infiniband/uverbs0",)


def test_only_what_has_grown_is_traffic():
    before = Traffic({"eth0": 5, "eth1": 3}, {"p:1": 2})
    after = Traffic({"eth0": 9, "eth1": 3, "eth2": 1}, {"p:1": 2})
    assert after.since(before) == Traffic({"eth0": 4, "eth2": 1}, {})
