"""Rank 0 finds an address at which each server of an asynchronous job answers."""

import socket
from collections.abc import Iterator

import pytest

from resnet.base.errors import UserError
from resnet.training.parameter_servers import cluster


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Yields two ports of 127.0.0.1 on which something listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        yield [one.getsockname()[1], other.getsockname()[1]]


def test_the_first_address_that_answers_is_taken(ports):
    endpoints = [
        ("ps", 0, (["127.0.0.1"], ports[0]), None),
        ("chief", 0, None, None),
        ("worker", 0, (["127.0.0.2", "127.0.0.1"], ports[1]), None),
    ]
    assert cluster._hosts_that_answer(endpoints) == {
        "ps": {0: f"127.0.0.1:{ports[0]}"},
        "worker": {0: f"127.0.0.1:{ports[1]}"},
    }


def test_a_server_that_does_not_answer_is_named(ports):
    endpoints = [
        ("worker", 0, (["127.0.0.1"], ports[0]), None),
        ("worker", 1, (["127.0.0.2", "127.0.0.3"], ports[1]), None),
    ]
    with pytest.raises(UserError) as refused:
        cluster._hosts_that_answer(endpoints)
    assert str(refused.value).startswith(
        "worker 1 must be reachable from rank 0 by TCP; it is not, at 127.0.0.2,"
        f" 127.0.0.3, port {ports[1]}."
    )


def test_a_server_that_has_not_started_is_named_with_its_reason():
    endpoints = [("ps", 1, None, "it says: address in use")]
    with pytest.raises(UserError, match="server of ps 1 must start; it says: address"):
        cluster._hosts_that_answer(endpoints)
