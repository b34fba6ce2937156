r"""Plans a job on a cluster: ranks, cores, threads, batches, and the command.

python launch/plan.py --num_nodes=256 --sockets=2 --cores_per_socket=24 \
    --recipe=tpu_90ep_24k
python launch/plan.py --probe --hosts=hosts --recipe=digits --print=script

The first prints the plan of the published run and its command. --probe reads
the nodes instead of having them stated: this machine, or with --hosts each host
of a file. The flags of the training, such as --train_batch_size, change the
run, and are passed on to it. --check compares the hosts and starts the ranks
once; --run checks, and runs the job. The program needs no TensorFlow, so it
runs on a login node.
"""

import math
import pathlib
import shlex
import sys
from collections.abc import Mapping

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from launch import flag_topics, labels, mpirun_command, plan_flags
from launch.checking import allocation, host_report, preflight, table
from launch.checking.preflight import DataFolders
from launch.dialects.job_shape import Dialect
from launch.nodes import host_commands, probe, topology
from launch.nodes.topology import Topology
from launch.planning import batch_file, job_plan, plan_text
from launch.planning.job_plan import Plan
from launch.stop_requests import StopRequests
from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import EXIT_CODE, UserError
from resnet.runtime import preemption
from resnet.runtime.preemption import REQUEUE_EXIT_CODE

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parents[1]
# Flags of the training about how it is looked at.
_WITHOUT = ("list_recipes", "explain", "explain_plot", "num_ranks")
_OF_STATED_NODES = ("threads_per_core", "numa_per_socket", "memory_gb")


def main() -> None:
    """Prints what the flags ask for, or checks and runs the job."""
    shared_flags.check_values()
    data_dir = FLAGS.data_dir or ""
    if FLAGS.print == "host":
        own = host_report.gather(data_dir, FLAGS.stage_from or data_dir)
        errors.print_to_pipe(host_report.to_json(own))
        return
    require_one_source()
    if FLAGS.check or FLAGS.run:
        sys.exit(check_and_run())
    found = nodes()
    if FLAGS.print == "topology":
        errors.print_to_pipe(topology.to_json(found))
        return
    plan = job_plan.make(found, plan_flags.request())
    data_dir, model_dir = FLAGS.data_dir or "RECORDS", FLAGS.model_dir or "MODEL"
    if FLAGS.print == "command":
        text = shlex.join(plan.command(data_dir, model_dir))
    elif FLAGS.print == "script":
        written_by = shlex.join(["python", "launch/plan.py", *sys.argv[1:]])
        text = batch_file.script(
            plan, plan_flags.batch_settings(), plan_flags.folders(), written_by
        )
        text = text.removesuffix("\n")
    elif FLAGS.print == "json":
        text = plan_text.to_json(plan, data_dir, model_dir)
    else:
        text = plan_text.describe(plan, data_dir, model_dir)
    errors.print_to_pipe(text)


def check_and_run() -> int:
    """Prints what a check finds, and runs the job if asked to; returns the exit code.

    Raises:
        UserError: If a flag is missing, or there is no plan or launcher for the hosts.
    """
    if FLAGS.run:
        shared_flags.check()  # Both folders must be named.
        refuse_flags_of_scripts()
    requests = StopRequests()
    requests.catch()
    checked = preflight.check(
        read_hosts() or allocation.require(FLAGS.num_nodes or 1),
        dialect(),
        DataFolders(
            FLAGS.data_dir or "", FLAGS.stage_from or "", FLAGS.shard_by == "file"
        ),
        plan_for,
        requests,
        allows_single_core=FLAGS.ranks_per_node is not None,
    )
    if requests.seen:
        print("stopped before the end of the check", file=sys.stderr)
        return REQUEUE_EXIT_CODE
    errors.print_to_pipe(table.describe(checked.findings))
    if not FLAGS.run:
        return EXIT_CODE if checked.problems else 0
    if checked.plan is None or not checked.can_run:
        return EXIT_CODE
    pattern = checked.plan.dialect.LABEL if checked.plan.is_launched else ""
    hosts = checked.hosts_of_ranks
    code = labels.run(job_words(checked.plan), pattern, hosts, requests)
    preemption.ignore_stop_signals()
    return code


def refuse_flags_of_scripts() -> None:
    """Refuses flags about what a script does before the job, with --run.

    Raises:
        UserError: If one is given.
    """
    for name, what in (("stage_from", "records"), ("bundle", "programs")):
        if FLAGS[name].value:
            raise UserError(
                f"--run starts the job without copying {what} to the nodes; got"
                f" --{name}={FLAGS[name].value}. Run what --print=script prints, or"
                f" leave --{name} out."
            )


def plan_for(topologies: Mapping[str, Topology]) -> Plan:
    """Returns the plan for hosts that have been asked.

    Args:
        topologies: The topology of each host, by its name.
    """
    found = topology.of_hosts(list(topologies.items())) if FLAGS.probe else nodes()
    return job_plan.make(found, plan_flags.request())


def job_words(plan: Plan) -> list[str]:
    """Returns the words that run a plan from here, supervised if it is a training."""
    is_training = plan.job != "eval"
    # A wheel has the programs of eval and launch in a folder of its own.
    root = pathlib.Path(shared_flags.__file__).parents[1] if is_training else ROOT
    options = plan.dialect.LABEL_OPTIONS
    folders = (FLAGS.data_dir, FLAGS.model_dir, f"{root}/")
    words = plan.command(*folders, python=sys.executable, options=options)
    if not is_training:
        return words
    return [sys.executable, str(ROOT / "launch/supervise.py"), "--", *words]


def require_one_source() -> None:
    """Refuses flags that describe the nodes in no way, in several, or beside a probe.

    Raises:
        UserError: If they do.
    """
    num_sources = is_stated() + FLAGS.probe + bool(FLAGS.topology)
    if num_sources != 1:
        raise UserError(
            "expected the nodes by one of --sockets with --cores_per_socket, --probe,"
            f" and --topology=FILE; got {'several' if num_sources else 'none'}."
        )
    given = [f"--{name}" for name in _OF_STATED_NODES if FLAGS[name].present]
    if given and not is_stated():
        raise UserError(
            "--probe and --topology already describe the nodes; got"
            f" {', '.join(given)} as well, which only --sockets needs. Leave it out."
        )


def is_stated() -> bool:
    """Returns whether the flags describe a node by numbers."""
    return FLAGS.sockets is not None or FLAGS.cores_per_socket is not None


def nodes() -> Topology:
    """Returns the nodes, from the source that the flags name.

    Raises:
        UserError: If it can't be read.
    """
    hosts = read_hosts()
    num_nodes = len(hosts) or (1 if FLAGS.num_nodes is None else FLAGS.num_nodes)
    if num_nodes < 1:
        raise UserError(f"--num_nodes must be at least 1; got {num_nodes}.")
    if not 0 <= FLAGS.memory_gb < math.inf:
        raise UserError(f"--memory_gb must be 0 or more; got {FLAGS.memory_gb}.")
    if is_stated():
        return topology.stated(
            num_nodes,
            FLAGS.sockets or 0,
            FLAGS.cores_per_socket or 0,
            FLAGS.threads_per_core,
            FLAGS.numa_per_socket,
            round(FLAGS.memory_gb * 1e9),
        )
    if FLAGS.probe and hosts:
        return topology.of_hosts(probe_hosts(hosts))
    one = probe.probe() if FLAGS.probe else read_topology(FLAGS.topology)
    return topology.repeated(one, num_nodes, hosts)


def read_hosts() -> list[str]:
    """Returns the hosts in the file of --hosts; none without it.

    Raises:
        UserError: If the file can't be read, or its hosts are not those of --num_nodes.
    """
    if not FLAGS.hosts:
        return []
    hosts = [host.partition(":")[0] for host in mpirun_command.read_hosts(FLAGS.hosts)]
    if not hosts:
        raise UserError(f"{FLAGS.hosts} must name a host on each line; it names none.")
    if len(set(hosts)) < len(hosts):
        raise UserError(f"{FLAGS.hosts} must name each host once; it names one twice.")
    if FLAGS.num_nodes not in (None, len(hosts)):
        raise UserError(
            f"--num_nodes must be the number of hosts in {FLAGS.hosts}; got"
            f" {FLAGS.num_nodes} and {len(hosts)} hosts. Leave it out."
        )
    return hosts


def read_topology(path: str) -> Topology:
    """Returns the nodes in a file.

    Raises:
        UserError: If it can't be read, or holds something else.
    """
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--topology={path} can't be read: {error}.") from error
    return topology.from_json(text, f"--topology={path}")


def probe_hosts(hosts: list[str]) -> list[tuple[str, Topology]]:
    """Returns the name and the topology of each host.

    Raises:
        UserError: If there is no such launcher, or it can't reach a host.
    """
    requests = StopRequests()
    requests.catch()
    words = ["--probe", "--print=topology"]
    answers, failures = host_commands.run_on_hosts(hosts, dialect(), words, requests)
    for sentence in failures.values():
        raise UserError(sentence)
    return [
        (host, topology.from_json(answer, f"the answer of {host}"))
        for host, answer in answers.items()
    ]


def dialect() -> Dialect:
    """Returns how the launcher is spoken to."""
    return job_plan.DIALECTS[FLAGS.launcher]


def run() -> None:
    """Runs the program."""
    for name in _WITHOUT:
        delattr(FLAGS, name)
    errors.run(main, flag_topics.PLAN)


if __name__ == "__main__":
    run()
