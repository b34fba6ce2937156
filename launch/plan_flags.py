"""The flags of the planner, and what they ask for."""

import pathlib
import re

from absl import flags

from launch import launch_flags  # noqa: F401 - It defines flags.
from launch.dialects.job_shape import BatchSettings
from launch.planning import job_plan
from launch.planning.batch_file import Folders
from launch.planning.job_plan import Request
from resnet import shared_flags, train_flags
from resnet.base.errors import UserError
from resnet.config import recipe_file

FLAGS = flags.FLAGS
OUTPUTS = ("plan", "command", "script", "json", "topology", "host")
ROOT = pathlib.Path(__file__).resolve().parents[1]
# Flags of the programs that a plan sets by itself.
_PLANNED = (
    "recipe",
    "data_dir",
    "model_dir",
    "num_intra_threads",
    "num_inter_threads",
    "use_tpu",
    "num_ps",
)
_OF_EVALUATION = ("eval_batch_size", "kmp_blocktime")  # A plan sets them by itself.

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
    "Detect the hardware instead of taking it from flags: of this machine or, with"
    " --hosts, of each host of the file.",
)
flags.DEFINE_string(
    "topology",
    None,
    "A file with the output of --probe --print=topology on a node, to plan for.",
)
flags.DEFINE_enum(
    "launcher",
    "mpich",
    tuple(job_plan.DIALECTS),
    "The launcher or scheduler; mpich is also that of other MPIs with Hydra.",
)
flags.DEFINE_enum(
    "job",
    "train",
    job_plan.JOBS,
    "What is planned: a training, an evaluation, or an asynchronous training.",
)
flags.DEFINE_enum(
    "print",
    "plan",
    OUTPUTS,
    "What is printed: the plan, the command alone, a script (a batch file for a"
    " scheduler), all as JSON, the nodes as JSON, or what --check asks each host.",
)
flags.DEFINE_bool(
    "check",
    False,
    "Check the hosts and start the ranks once, instead of printing the plan: a table of"
    " what was found, and exit code 2 if there is a problem.",
)
flags.DEFINE_bool(
    "run",
    False,
    "Check, and then run the job under the supervisor, with rank and host in front of"
    " each line.",
)
flags.DEFINE_string(
    "run_name",
    None,
    "The name of the job and, in a script without --model_dir, of the run's folder in"
    " OUTPUT_DIR.",
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


def request() -> Request:
    """Returns what the flags ask for.

    Raises:
        UserError: If there is no such recipe, or the data set can't be read.
    """
    recipe = recipe_file.get(FLAGS.recipe)
    num_examples = recipe.num_train_examples
    class_names: tuple[str, ...] = ()
    if FLAGS.data_dir and pathlib.Path(FLAGS.data_dir).is_dir():
        # It needs NumPy, and the records are rarely on a login node.
        from data_prep.records import manifest

        if record_set := manifest.find(FLAGS.data_dir):
            contents = record_set.manifest
            if "train" in contents.splits:
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
        num_servers=num_servers(),
        hosts_file=FLAGS.hosts or "",
        srun_mpi=FLAGS.srun_mpi or "",
        kmp_blocktime=FLAGS.kmp_blocktime,
    )


def num_servers() -> int | None:
    """Returns the number of servers that is asked for; None if it isn't.

    Raises:
        UserError: If the two flags for it differ, or the job has no servers.
    """
    names = [name for name in ("num_servers", "num_ps") if FLAGS[name].present]
    given = " and ".join(f"--{name}={FLAGS[name].value}" for name in names)
    if names and FLAGS.job != "parameter_server":
        raise UserError(
            "only a job with parameter servers (--job=parameter_server) has a number"
            f" of them; got {given} with --job={FLAGS.job}. Leave it out."
        )
    values = {FLAGS[name].value for name in names}
    if len(values) > 1:
        raise UserError(
            f"the number of parameter servers must be one; got {given}. Leave one out."
        )
    return values.pop() if values else None


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
        for name in _OF_EVALUATION:
            found.pop(name, None)
        if found:
            raise UserError(
                "--job=eval plans an evaluation, which has no flags of a training; got"
                f" {', '.join(found.values())}."
            )
    return found


def batch_settings() -> BatchSettings:
    """Returns what a scheduler is asked for.

    Raises:
        UserError: If the time limit isn't one, or the name can't be a job's.
    """
    match = re.fullmatch(r"(\d{1,4}):([0-5]\d)", FLAGS.time_limit)
    if not match or match[0].replace("0", "") == ":":
        raise UserError(
            "--time_limit must be hours and minutes, such as 04:00; got"
            f" {FLAGS.time_limit!r}."
        )
    name = FLAGS.run_name or _run_dir() or FLAGS.recipe
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(
            "the name of a job must consist of letters, digits and any of _.-; got"
            f" {name!r}. Give another one by --run_name."
        )
    return BatchSettings(
        name=name,
        hours=int(match[1]),
        minutes=int(match[2]),
        partition=FLAGS.partition or "",
        is_resumed=FLAGS.job != "eval",
    )


def _run_dir() -> str:
    """Returns the last part of --model_dir; empty without it."""
    return pathlib.Path(FLAGS.model_dir or "").name


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
        run_dir=_run_dir(),
        stage_from=FLAGS.stage_from or "",
        stages_shards=FLAGS.shard_by == "file",
        bundle=FLAGS.bundle or "",
    )
