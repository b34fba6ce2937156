"""The process of a TensorFlow server, a child of the rank that looks after it.

It reads a line with its port and whom it may talk to (`private_ports.Guard`), prints a
dot when it listens and then every second, and ends with its parent: when its standard
input is closed, or when the parent dies.
"""

import argparse
import json
import os
import select
import signal
import sys

from resnet.base import output
from resnet.runtime import startup
from resnet.training.parameter_servers.private_ports import Guard
from resnet.watchdog import proc

HEARTBEAT_SECONDS = 1.0
# Ops that wait for other tasks or for a dataset hold a thread while they wait; with no
# other thread they would wait forever.
_BLOCKING_OPS = 3


def main() -> None:
    """Serves until the parent ends."""
    output.secure()
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--num_intra_threads", type=int, required=True)
    parser.add_argument("--num_inter_threads", type=int, required=True)
    arguments = parser.parse_args()
    guard = Guard(*json.loads(sys.stdin.readline()))
    proc.send_signal_at_parents_end(signal.SIGKILL, arguments.parent)
    startup.import_tensorflow()
    import tensorflow as tf

    guard.install()
    from resnet import native

    native.ops()  # Graphs that use the ops arrive once the server has started.
    _server = tf.distribute.Server(  # It lives as long as this reference.
        tf.train.ClusterSpec(
            {arguments.job: {arguments.index: f"localhost:{guard.port}"}}
        ),
        job_name=arguments.job,
        task_index=arguments.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=arguments.num_intra_threads,
            inter_op_parallelism_threads=_BLOCKING_OPS + arguments.num_inter_threads,
        ),
    )
    os.write(1, b".")
    while not select.select([0], [], [], HEARTBEAT_SECONDS)[0]:
        os.write(1, b".")
    os._exit(0)  # A server can't be stopped, and nothing of it is worth saving.
