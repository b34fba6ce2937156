r"""Plans a job on a cluster: ranks, cores, threads, batches, and the command.

python launch/plan.py --num_nodes=256 --sockets=2 --cores_per_socket=24 \
    --recipe=tpu_90ep_24k
python launch/plan.py --probe --hosts=hosts --launcher=slurm --print=script

The first prints the plan of the published run and its command. --probe reads
the nodes instead of having them stated: this machine, or with --hosts each host
of a file. The flags of the training, such as --train_batch_size, change the
run, and are passed on to it. The program needs no TensorFlow, so it runs on a
login node.
"""

import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from data_prep import errors
from data_prep.errors import UserError
from launch import (
    batch_file,
    flag_topics,
    launch_flags,  # noqa: F401 - Defines flags.
    mpirun_command,
    plan_text,
    planning,
    probe,
    topology,
)
from launch.batch_file import Folders
from launch.dialects.job_shape import BatchSettings
from launch.planning import Request
from launch.topology import Topology
from resnet import shared_flags, train_flags
from resnet.recipes import json_file

FLAGS = flags.FLAGS
OUTPUTS = ("plan", "command", "script", "json", "topology")
PROBE_SECONDS = 60.0  # Timeout of a probe; ssh's own timeout is minutes.
ROOT = pathlib.Path(__file__).resolve().parents[1]
# Flags of the training about how it is looked at.
_WITHOUT = ("list_recipes", "explain", "explain_plot", "num_ranks")
# Flags of the programs that a plan sets by itself.
_PLANNED = (
    "recipe",
    "data_dir",
    "model_dir",
    "num_intra_threads",
    "num_inter_threads",
    "kmp_blocktime",
    "use_tpu",
    "num_ps",
)

flags.DEFINE_integer("sockets", None, "The number of processor sockets of a node.")
flags.DEFINE_integer("cores_per_socket", None, "The number of cores of a socket.")
flags.DEFINE_integer("threads_per_core", 1, "The number of hyper-threads of a core.")
flags.DEFINE_integer(
    "numa_per_socket",
    1,
    "The number of NUMA nodes of a socket, above 1 with sub-NUMA clusters.",
)
flags.DEFINE_float("memory_gb", 0.0, "The memory of a node in GB; 0 if unknown.")
flags.DEFINE_bool(
    "probe",
    False,
    "Read the nodes, rather than have them stated: this machine or, with --hosts, each"
    " host of the file.",
)
flags.DEFINE_string(
    "topology",
    None,
    "A file with the output of --probe --print=topology on a node, to plan for.",
)
flags.DEFINE_enum(
    "launcher",
    "mpich",
    tuple(planning.DIALECTS),
    "The launcher or scheduler; mpich is also that of other MPIs with Hydra.",
)
flags.DEFINE_enum(
    "job",
    "train",
    planning.JOBS,
    "What is planned: a training, an evaluation, or an asynchronous training.",
)
flags.DEFINE_enum(
    "print",
    "plan",
    OUTPUTS,
    "What is printed: the plan, the command alone, a script (a batch file for a"
    " scheduler), all as JSON, or the nodes as JSON.",
)
flags.DEFINE_string(
    "run_name",
    None,
    "The name of the job and, in a script, of the run's folder in OUTPUT_DIR.",
)
flags.DEFINE_string("time_limit", "24:00", "The time limit of a batch job, as HH:MM.")
flags.DEFINE_string("partition", None, "The partition or queue of a batch job.")
flags.DEFINE_string(
    "srun_mpi",
    None,
    "The plugin by which srun starts MPI programs, such as pmi2 or pmix"
    " (srun --mpi=list).",
)
flags.DEFINE_string(
    "stage_from",
    None,
    "A shared folder whose records a script first copies to --data_dir on each node;"
    " with --shard_by=file each node's own.",
)
flags.DEFINE_string(
    "bundle",
    None,
    "An archive of `make bundle` on a shared disk: a script has each node unpack it on"
    " its own disk, and runs from there.",
)
flags.DEFINE_string(
    "clone",
    None,
    "The path of this clone on the cluster, for a script; if empty, the script looks"
    " for it, as those in launch/jobs do.",
)


def main() -> None:
    """Prints what the flags ask for."""
    shared_flags.check_values()
    found = nodes()
    if FLAGS.print == "topology":
        errors.print_to_pipe(topology.to_json(found))
        return
    plan = planning.make(found, request())
    data_dir, model_dir = FLAGS.data_dir or "RECORDS", FLAGS.model_dir or "MODEL"
    if FLAGS.print == "command":
        text = shlex.join(plan.command(data_dir, model_dir))
    elif FLAGS.print == "script":
        written_by = shlex.join(["python", "launch/plan.py", *sys.argv[1:]])
        text = batch_file.script(plan, batch_settings(), folders(), written_by)
        text = text.removesuffix("\n")
    elif FLAGS.print == "json":
        text = plan_text.to_json(plan, data_dir, model_dir)
    else:
        text = plan_text.describe(plan, data_dir, model_dir)
    errors.print_to_pipe(text)


def nodes() -> Topology:
    """Returns the nodes, from whichever source the flags name.

    Raises:
        UserError: If they name none or several, or it can't be read.
    """
    is_stated = FLAGS.sockets is not None or FLAGS.cores_per_socket is not None
    num_sources = is_stated + FLAGS.probe + bool(FLAGS.topology)
    if num_sources != 1:
        raise UserError(
            "expected the nodes by one of --sockets with --cores_per_socket, --probe,"
            f" and --topology=FILE; got {'several' if num_sources else 'none'}."
        )
    hosts = read_hosts()
    num_nodes = len(hosts) or (1 if FLAGS.num_nodes is None else FLAGS.num_nodes)
    if num_nodes < 1:
        raise UserError(f"--num_nodes must be at least 1; got {num_nodes}.")
    if is_stated:
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
    """Returns the name and the topology of each host, probed at the same time."""
    with ThreadPoolExecutor(max_workers=min(len(hosts), 32)) as threads:
        return list(zip(hosts, threads.map(probe_host, hosts), strict=True))


def probe_host(host: str) -> Topology:
    """Returns the topology of a host, which the launcher reaches.

    Raises:
        UserError: If there is no such launcher, or it can't reach the host.
    """
    program = [sys.executable, str(ROOT / "launch/plan.py")]
    words = planning.DIALECTS[FLAGS.launcher].on_host(
        host, [*program, "--probe", "--print=topology"]
    )
    try:
        run = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{host} must answer within {PROBE_SECONDS:.0f} s; it hasn't. Remove it"
            f" from {FLAGS.hosts}, or mend it."
        ) from error
    except OSError as error:
        raise UserError(
            f"--launcher={FLAGS.launcher} needs the program {words[0]}, which can't be"
            f" run: {error.strerror}. Load its module, or choose another launcher."
        ) from error
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{host} can't be probed by `{shlex.join(words[:-4])} ...`, which ended"
            f" with exit code {run.returncode}: {last}"
        )
    return topology.from_json(run.stdout, f"the answer of {host}")


def request() -> Request:
    """Returns what the flags ask for.

    Raises:
        UserError: If there is no such recipe, or the data set can't be read.
    """
    recipe = json_file.get(FLAGS.recipe)
    num_examples = recipe.num_train_examples
    class_names: tuple[str, ...] = ()
    if FLAGS.data_dir and pathlib.Path(FLAGS.data_dir).is_dir():
        # It needs NumPy, and the records are rarely on a login node.
        from data_prep.records import manifest

        if record_set := manifest.find(FLAGS.data_dir):
            contents = record_set.manifest
            num_examples = contents.splits["train"].num_examples
            class_names = contents.class_names
    overrides = train_flags.overrides()
    if not FLAGS["accumulation_steps"].present:
        del overrides["accumulation_steps"]  # Memory decides.
    return Request(
        job=FLAGS.job,
        launcher=FLAGS.launcher,
        recipe=recipe,
        recipe_flag=FLAGS.recipe,
        overrides=overrides,
        given=given_flags(),
        num_train_examples=num_examples,
        class_names=class_names,
        eval_batch_size=FLAGS.eval_batch_size,
        ranks_per_node=FLAGS.ranks_per_node,
        num_intra_threads=FLAGS.num_intra_threads,
        num_inter_threads=FLAGS.num_inter_threads,
        num_servers=FLAGS.num_servers,
        hosts_file=FLAGS.hosts or "",
        srun_mpi=FLAGS.srun_mpi or "",
        kmp_blocktime=FLAGS.kmp_blocktime,
    )


def given_flags() -> dict[str, str]:
    """Returns the words of the given flags that the training gets too, by their names.

    Raises:
        UserError: If there are any, but no training is planned.
    """
    found = {}
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module not in (train_flags.__name__, shared_flags.__name__):
            continue
        for flag in defined:
            if flag.present and flag.name not in _PLANNED:
                found[flag.name] = flag.serialize()
    if FLAGS.job == "eval":
        found.pop("eval_batch_size", None)
        if found:
            raise UserError(
                "--job=eval plans an evaluation, which has no flags of a training; got"
                f" {', '.join(found.values())}."
            )
    return found


def batch_settings() -> BatchSettings:
    """Returns what a scheduler is asked for.

    Raises:
        UserError: If the time limit isn't one.
    """
    match = re.fullmatch(r"(\d{1,4}):([0-5]\d)", FLAGS.time_limit)
    if not match or match[0].replace("0", "") == ":":
        raise UserError(
            "--time_limit must be hours and minutes, such as 04:00; got"
            f" {FLAGS.time_limit!r}."
        )
    name = FLAGS.run_name or FLAGS.recipe
    if FLAGS.model_dir:
        name = FLAGS.run_name or pathlib.Path(FLAGS.model_dir).name
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(
            "--run_name must consist of letters, digits and any of _.-, since it names"
            f" a job and a folder; got {name!r}."
        )
    return BatchSettings(
        name=name,
        hours=int(match[1]),
        minutes=int(match[2]),
        partition=FLAGS.partition or "",
        is_resumed=FLAGS.job != "eval",
    )


def folders() -> Folders:
    """Returns the folders of a script.

    Raises:
        UserError: If records are to be staged, but no folder is named for them.
    """
    if FLAGS.stage_from and not FLAGS.data_dir:
        raise UserError(
            "--stage_from needs --data_dir, the folder on the disk of each node that"
            " the records are copied to; got none."
        )
    output_dir = str(pathlib.Path(FLAGS.model_dir).parent) if FLAGS.model_dir else ""
    return Folders(
        clone=str(ROOT) if FLAGS.clone is None else FLAGS.clone,
        data_dir=FLAGS.data_dir or "",
        output_dir=output_dir,
        stage_from=FLAGS.stage_from or "",
        stages_shards=FLAGS.shard_by == "file",
        bundle=FLAGS.bundle or "",
    )


def run() -> None:
    """Runs the program."""
    for name in _WITHOUT:
        delattr(FLAGS, name)
    errors.run(main, flag_topics.PLAN)


if __name__ == "__main__":
    run()
