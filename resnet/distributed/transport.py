"""What carries the messages of this process: TCP by which interface, or a fabric.

MPI libraries choose a transport by themselves, and take TCP without a word where the
driver of a fabric can't be used. So this asks the kernel instead of the library.
Standard library only.
"""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface.
# linux/tcp.h: struct tcp_info has the bytes that were sent and acknowledged there.
_BYTES_ACKED = 120
_TCP_INFO_BYTES = _BYTES_ACKED + 8
_WORD_BYTES = 4  # Ports count 32-bit words (InfiniBand specification, PortXmitData).
# Device files of verbs (InfiniBand, RoCE, EFA), Omni-Path and Slingshot.
_DEVICES = ("/dev/infiniband/", "/dev/hfi1", "/dev/cxi")


@dataclass(frozen=True)
class Traffic:
    """What this process and its host have sent so far.

    Attributes:
        tcp_bytes: Bytes that this process has sent by TCP, by the interface.
        port_bytes: Bytes that the host has sent by each port of a fabric.
        open_devices: The device files of fabrics that this process has opened.
    """

    tcp_bytes: Mapping[str, int]
    port_bytes: Mapping[str, int]
    open_devices: tuple[str, ...] = ()

    def since(self, earlier: "Traffic") -> "Traffic":
        """Returns what was sent after an earlier time.

        Args:
            earlier: The traffic until then.
        """
        return Traffic(
            _difference(self.tcp_bytes, earlier.tcp_bytes),
            _difference(self.port_bytes, earlier.port_bytes),
            self.open_devices,
        )


def read(root: Path = Path("/")) -> Traffic:
    """Returns the traffic of this process until now.

    Args:
        root: The folder that stands for `/`.
    """
    interfaces = _interfaces_by_address()
    tcp_bytes: dict[str, int] = {}
    for address, num_bytes in _tcp_sockets():
        name = interfaces.get(address, address)
        tcp_bytes[name] = tcp_bytes.get(name, 0) + num_bytes
    return Traffic(tcp_bytes, _port_bytes(root), _open_devices(root))


def _difference(now: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    changes = {name: value - earlier.get(name, 0) for name, value in now.items()}
    return {name: change for name, change in changes.items() if change > 0}


def _tcp_sockets() -> Iterator[tuple[str, int]]:
    """Yields the local address of each TCP socket, and the bytes that it has sent."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile, or not of TCP.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                info = copy.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES
                )
                if len(info) < _TCP_INFO_BYTES:
                    continue  # Linux before 4.1.
                (num_bytes,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
                address = str(copy.getsockname()[0])
                yield address.removeprefix("::ffff:"), num_bytes


def _interfaces_by_address() -> dict[str, str]:
    """Returns the names of the interfaces by their IPv4 addresses."""
    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # An interface without an address.
                reply = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
                names[socket.inet_ntoa(reply[20:24])] = name
    return names


def _port_bytes(root: Path) -> dict[str, int]:
    """Returns the bytes that each port has sent, as in `mlx5_0:1`."""
    found = {}
    counters = (root / "sys/class/infiniband").glob("*/ports/*/counters/port_xmit_data")
    for counter in counters:
        with contextlib.suppress(OSError, ValueError):
            port = counter.parents[1]
            words = int(counter.read_text())
            found[f"{port.parents[1].name}:{port.name}"] = _WORD_BYTES * words
    return found


def _open_devices(root: Path) -> tuple[str, ...]:
    found = set()
    folder = root / "proc/self/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            target = os.readlink(folder / name)
            if target.startswith(_DEVICES):
                found.add(target)
    return tuple(sorted(found))
