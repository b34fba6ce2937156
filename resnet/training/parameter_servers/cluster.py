"""The cluster of TensorFlow servers, as rank 0 sees it."""

import contextlib
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf
from absl import logging as absl_logging

from resnet.base.errors import UserError
from resnet.training.parameter_servers import private_ports
from resnet.training.parameter_servers.private_ports import Guard
from resnet.training.parameter_servers.roles import SERVER, WORKER, Endpoint

_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 64


def connect(
    endpoints: Sequence[Endpoint],
) -> tf.distribute.coordinator.ClusterCoordinator:
    """Returns the coordinator of these servers and workers.

    Raises UserError if one can't be reached.
    """
    Guard.of(None, endpoints).install()
    cluster = tf.train.ClusterSpec(_hosts_that_answer(endpoints))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, rpc_layer="grpc"
    )
    # A lost worker isn't an error: its rank tells of it in a sentence.
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.WARNING)  # At INFO, it prints its settings.
    try:
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        return tf.distribute.coordinator.ClusterCoordinator(strategy)
    finally:
        absl_logging.set_verbosity(verbosity)


def _hosts_that_answer(endpoints: Sequence[Endpoint]) -> dict[str, dict[int, str]]:
    """Returns host and port of each server, by job and index; errors as `connect`."""
    hosts: dict[str, dict[int, str]] = {SERVER: {}, WORKER: {}}
    # At the same time: an address that doesn't answer takes seconds.
    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        for server, address in zip(
            endpoints, pool.map(_reachable, endpoints), strict=True
        ):
            hosts[server.job][server.index] = address
    return hosts


def _reachable(server: Endpoint) -> str:
    """Returns the first of a host's addresses at which its server answers."""
    for address in private_ports.addresses_from_here(server):
        with contextlib.suppress(OSError):
            socket.create_connection((address, server.port), _CONNECT_SECONDS).close()
            return f"{address}:{server.port}"
    raise UserError(
        f"{server.job} {server.index} must be reachable from rank 0 by TCP; it is not,"
        f" at {', '.join(server.addresses)}, port {server.port}. Open the ports between"
        " the hosts."
    )
