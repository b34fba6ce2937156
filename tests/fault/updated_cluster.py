"""Calls a function of many tensors on a worker while the cluster is updated.

Printed are the numbers of calls and of updates; the exit code is 1 if one never ends.
"""

import os
import threading
import time

from resnet.base import environment

numbers = {"num_intra_threads": 1, "num_inter_threads": 1}
environment.settle(os.environ, environment.changes(os.environ, numbers))

import tensorflow as tf
from tensorflow.python.eager import context

servers = [
    tf.distribute.Server({job: ["localhost:0"]}, job_name=job, protocol="grpc")
    for job in ("worker", "ps")
]
hosts = [server.target.removeprefix("grpc://") for server in servers]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": [hosts[0]], "ps": [hosts[1]]}), rpc_layer="grpc"
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
handler = coordinator._cluster.failure_handler  # As it does for a restarted worker.
add = tf.function(lambda *numbers: tf.add_n(numbers))
num_calls = num_updates = 0


def call() -> None:
    global num_calls
    while True:
        value = coordinator.schedule(add, args=[tf.constant(i) for i in range(100)])
        assert int(value.fetch()) == 4950
        num_calls += 1


def update() -> None:
    global num_updates
    while num_calls < 1:
        time.sleep(0.1)
    while True:
        with handler._cluster_update_lock:
            context.context().update_server_def(handler._server_def)
        num_updates += 1
        time.sleep(0.005)


for target in (call, update):
    threading.Thread(target=target, daemon=True).start()
time.sleep(12)
num_ended = num_calls
time.sleep(5)
print(num_calls, num_updates, flush=True)
os._exit(num_calls == num_ended)
