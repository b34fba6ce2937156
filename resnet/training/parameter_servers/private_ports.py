"""Ports at which TensorFlow's servers hear only the processes of their job.

A compiled library (resnet/native/private_ports.c) makes TensorFlow's connections begin
with the secret of the server that they go to, and drops those that do not.
"""

import contextlib
import ctypes
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from resnet.base.errors import UserError
from resnet.training.parameter_servers.roles import Endpoint, Role
from resnet.watchdog import client
from resnet.watchdog.connections import LOOPBACK

LIBRARY = Path(__file__).parents[2] / "native" / "libresnet_ports.so"
_TENSORFLOW = "/libtensorflow_cc.so"  # Its library with gRPC.
_LOOPBACK = [LOOPBACK]
_BYTES_PER_ADDRESS = 4 + 2 + 32  # IPv4 address, port, secret.


def require_library() -> None:
    """Raises UserError if the library can't be loaded."""
    try:
        ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise UserError(
            "asynchronous training needs a compiled library, without which anyone who"
            f" can connect to its ports can act as their user; {error}. make venv, in a"
            " clone of the project, builds it."
        ) from error


@contextlib.contextmanager
def held_endpoint(role: Role, on_one_host: bool) -> Iterator[Endpoint]:
    """Yields the endpoint of a server to be, at a port that no other user can take.

    A process of this user can listen there by SO_REUSEPORT, and another one after it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((LOOPBACK if on_one_host else "", 0))
        addresses = _LOOPBACK if on_one_host else client.own_addresses()
        port, secret = holder.getsockname()[1], secrets.token_bytes(32)
        yield Endpoint(role.job, role.index, addresses, port, secret)


def addresses_from_here(server: Endpoint) -> list[str]:
    """Returns the addresses by which this host reaches a server.

    Of another host's addresses, one that this host has as well, as that of loopback or
    of a bridge of containers, leads to whoever listens there on this host.
    """
    own = client.own_addresses()
    is_here = server.addresses in (own, _LOOPBACK)
    return [ip for ip in server.addresses if is_here or ip not in own]


class Guard(NamedTuple):
    """What a process has to know to talk to the servers of its job.

    These are arguments of `resnet_guard_sockets`, those of bytes in hexadecimal form.
    """

    servers: str
    secret: str
    port: int  # 0 for any.
    listens_locally: bool

    @classmethod
    def of(cls, own: Endpoint | None, endpoints: Sequence[Endpoint]) -> "Guard":
        """Returns that of a server, or of the coordinator, which has no endpoint.

        TensorFlow starts a server on the coordinator too, which nobody else uses.
        """
        servers = b"".join(
            socket.inet_aton(address) + struct.pack("!H", server.port) + server.secret
            for server in endpoints
            for address in addresses_from_here(server)
        )
        secret, port = (own.secret, own.port) if own else (secrets.token_bytes(32), 0)
        listens_locally = own is None or own.addresses == _LOOPBACK
        return cls(servers.hex(), secret.hex(), port, listens_locally)

    def install(self, library_name: str = _TENSORFLOW) -> None:
        """Guards the sockets of a library that is loaded, by a part of its path.

        Raises RuntimeError if the library, perhaps another version, connects otherwise.
        """
        guard_sockets = ctypes.CDLL(str(LIBRARY)).resnet_guard_sockets
        guard_sockets.restype = ctypes.c_char_p
        servers, secret = bytes.fromhex(self.servers), bytes.fromhex(self.secret)
        num_servers = len(servers) // _BYTES_PER_ADDRESS
        missing = guard_sockets(
            library_name.encode(),
            servers,
            num_servers,
            secret,
            self.port,
            self.listens_locally,
        )
        if missing:
            raise RuntimeError(
                f"{library_name} must connect by {missing.decode()}, but does not: its"
                " ports would answer anybody"
            )
