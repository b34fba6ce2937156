"""From a cluster's topology and a recipe to the plan of a job: pure functions."""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.dialects import intelmpi, lsf, mpich, openmpi, pbs, slurm
from launch.dialects.job_shape import Dialect, JobShape
from launch.nodes.topology import Topology, cpu_list
from launch.planning import advice, layout, run_numbers
from launch.planning.layout import Layout
from launch.planning.run_numbers import RunNumbers
from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.config.recipe import Recipe
from resnet.config.recipes import imagenet
from resnet.hardware import placement

DIALECTS: dict[str, Dialect] = {
    "mpich": mpich,
    "intelmpi": intelmpi,
    "openmpi": openmpi,
    "slurm": slurm,
    "lsf": lsf,
    "pbs": pbs,
}
JOBS = ("train", "eval", "parameter_server")
PROGRAMS = {
    "train": "resnet/resnet_main.py",
    "eval": "eval/resnet_eval.py",
    "parameter_server": "resnet/resnet_main.py",
}
# What stands for the folders in the words of a program, and for the clone.
DATA_DIR, MODEL_DIR, CLONE = "@DATA_DIR@", "@MODEL_DIR@", "@CLONE@/"
_PYTHON = "python"  # In front of it may be a restriction to some cores.
# Flags with which the published command still says the whole run.
_OF_PUBLISHED_COMMAND = {"train_batch_size", "train_steps", "kmp_blocktime"}


@dataclass(frozen=True)
class Request:
    """What a plan is asked for.

    Attributes:
        job: One of `JOBS`.
        launcher: One of `DIALECTS`.
        recipe: The recipe of the run.
        recipe_flag: The value of --recipe that names it.
        overrides: The settings of the run that the command line overrides.
        given: The words of the flags that are passed on to a training, by the flags'
            names.
        num_train_examples: The number of training examples.
        class_names: The names of the classes; empty if they aren't known.
        eval_batch_size: The number of examples in a step of evaluation.
        ranks_per_node: The ranks, or workers, of a node; None for one per NUMA node.
        num_intra_threads: The number of threads per op; 0 chooses it.
        num_inter_threads: The number of concurrent ops; 0 chooses it.
        num_servers: The number of parameter servers; None chooses it.
        hosts_file: A file of host names; empty if the scheduler knows them.
        srun_mpi: The plugin by which srun starts MPI programs; empty for the default.
        kmp_blocktime: The time that an OpenMP thread spins before it sleeps, in ms.
    """

    job: str
    launcher: str
    recipe: Recipe
    recipe_flag: str
    overrides: Mapping[str, Any]
    num_train_examples: int
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    eval_batch_size: int = 200
    ranks_per_node: int | None = None
    num_intra_threads: int = 0
    num_inter_threads: int = 0
    num_servers: int | None = None
    hosts_file: str = ""
    srun_mpi: str = ""
    kmp_blocktime: int = 1


@dataclass(frozen=True)
class Plan:
    """A job, planned.

    Attributes:
        job: One of `JOBS`.
        launcher: One of `DIALECTS`.
        recipe: The recipe.
        topology: The nodes.
        layout: The ranks, their cores and threads.
        shape: The processes as the launcher needs them.
        numbers: The numbers of the run; None for an evaluation.
        program: The words of the program, with `DATA_DIR` and such in them.
        environment: The variables that each rank sets before TensorFlow is imported, as
            far as they are the same on all ranks.
        reasons: Why the plan is so, in sentences.
        warnings: What may be wrong or slow, in sentences.
    """

    job: str
    launcher: str
    recipe: Recipe
    topology: Topology
    layout: Layout
    shape: JobShape
    numbers: RunNumbers | None
    program: tuple[str, ...]
    environment: dict[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def dialect(self) -> Dialect:
        """The launcher's dialect."""
        return DIALECTS[self.launcher]

    @property
    def is_launched(self) -> bool:
        """Whether a launcher starts the job; a single process here needs none."""
        is_elsewhere = self.launcher == "slurm" or bool(self.shape.hosts_file)
        return self.shape.num_processes > 1 or is_elsewhere

    def command(
        self,
        data_dir: str,
        model_dir: str,
        clone: str = "",
        python: str = _PYTHON,
        options: Sequence[str] = (),
    ) -> list[str]:
        """Returns the words of the command.

        Args:
            data_dir: The folder of the records.
            model_dir: The folder of the run.
            clone: The path of the clone with a slash behind it; empty if the command is
                called in it.
            python: The path of Python.
            options: Further options of the launcher.
        """
        folders = {DATA_DIR: data_dir, MODEL_DIR: model_dir, CLONE: clone}
        words = list(self.program[self.program.index(_PYTHON) + 1 :])
        for name, folder in folders.items():
            words = [word.replace(name, folder) for word in words]
        return self.launched([python, *words], options)

    def launched(
        self, program: Sequence[str], options: Sequence[str] = ()
    ) -> list[str]:
        """Returns the words by which each rank runs a program, on the usable cores.

        Args:
            program: The words of the program.
            options: Further options of the launcher.
        """
        words = [*self.program[: self.program.index(_PYTHON)], *program]
        if not self.is_launched:
            return words
        launcher, *others = self.dialect.command(self.shape)
        return [launcher, *options, *others, *words]


def make(topology: Topology, request: Request) -> Plan:
    """Returns the plan of a job.

    Args:
        topology: The nodes.
        request: What is asked for.

    Raises:
        UserError: If the nodes, the batch or a setting don't allow it.
    """
    require_servers(request)
    chosen = layout.choose(
        topology,
        request.ranks_per_node,
        request.num_intra_threads,
        request.num_inter_threads,
    )
    shape, request = _shape(topology, chosen, request)
    numbers, config = None, None
    if request.job != "eval":
        numbers, config = run_numbers.compute(
            request.recipe,
            request.overrides,
            shape.num_processes,
            topology.memory_bytes // chosen.ranks_per_node,
            request.num_train_examples,
            request.class_names,
        )
    reasons = [*chosen.reasons, *(numbers.reasons if numbers else ())]
    warnings = [
        *chosen.warnings,
        *advice.of_topology(topology, request.launcher),
        *(
            advice.of_run(topology, chosen, config, numbers)
            if config and numbers
            else ()
        ),
        *advice.of_servers(shape, request.job, chosen.ranks_per_node),
        *advice.of_srun(shape, request.launcher, chosen),
    ]
    return Plan(
        job=request.job,
        launcher=request.launcher,
        recipe=request.recipe,
        topology=topology,
        layout=chosen,
        shape=shape,
        numbers=numbers,
        program=tuple(program_words(request, topology, chosen, config)),
        environment=environment(chosen, request.kmp_blocktime),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def require_servers(request: Request) -> None:
    """Refuses an asynchronous training without parameter servers, and the converse.

    Raises:
        UserError: If it is planned.
    """
    given = request.overrides.get("sync_mode")
    if request.job == "parameter_server" and given not in (None, "async"):
        raise UserError(
            "parameter servers (--job=parameter_server) need --sync_mode=async; got"
            f" --sync_mode={given}. Leave one of the two out."
        )
    mode = given or request.recipe.sync_mode
    if mode == "async" and request.job == "train":
        raise UserError(
            "an asynchronous training (--sync_mode=async) needs parameter servers; got"
            " --job=train. Use --job=parameter_server."
        )


def _shape(
    topology: Topology, chosen: Layout, request: Request
) -> tuple[JobShape, Request]:
    """Returns the processes of a job, and the request with what follows from them."""
    num_processes = chosen.num_ranks
    per_node = chosen.ranks_per_node
    is_server_job = request.job == "parameter_server"
    if is_server_job:
        # With the coordinator, each node then has one rank that hardly computes.
        num_servers = max(topology.num_nodes - 1, 1)
        if request.num_servers is not None:
            num_servers = request.num_servers
        if num_servers < 1:
            raise UserError(f"--num_servers must be at least 1; got {num_servers}.")
        num_processes += 1 + num_servers
        per_node = math.ceil(num_processes / topology.num_nodes)
        changes = {"sync_mode": "async", "num_ps": num_servers}
        overrides = {**request.overrides, **changes}
        request = dataclasses.replace(request, overrides=overrides)
    shape = JobShape(
        num_nodes=topology.num_nodes,
        num_processes=num_processes,
        processes_per_node=per_node,
        cpus_per_node=sum(len(core.cpus) for cores in chosen.cores for core in cores),
        goes_round=is_server_job,
        hosts_file=request.hosts_file,
        srun_mpi=request.srun_mpi,
    )
    return shape, request


def environment(chosen: Layout, kmp_blocktime: int) -> dict[str, str]:
    """Returns the variables that all ranks set to the same values by themselves."""
    cores = [core.cpus for core in chosen.cores[0]]
    threads = placement.choose_threads(
        cores, chosen.num_intra_threads, chosen.num_inter_threads
    )
    threads = dataclasses.replace(threads, communication_cpu=None)  # Each its own.
    return placement.environment(threads, kmp_blocktime, False, {})


def communication_cpus(chosen: Layout) -> list[int]:
    """Returns the logical processor of each local rank's Horovod thread, if any."""
    threads = [
        placement.choose_threads(
            [core.cpus for core in cores],
            chosen.num_intra_threads,
            chosen.num_inter_threads,
        )
        for cores in chosen.cores
    ]
    found = [one.communication_cpu for one in threads]
    return [cpu for cpu in found if cpu is not None]


def program_words(
    request: Request, topology: Topology, chosen: Layout, config: Config | None
) -> list[str]:
    """Returns the words of the program that each process runs.

    Args:
        request: What is asked for.
        topology: The nodes.
        chosen: The ranks, their cores and threads.
        config: The settings of a training; None for an evaluation.
    """
    words = [_PYTHON, CLONE + PROGRAMS[request.job]]
    if chosen.restricted_to and topology.has_cpu_numbers:
        words = ["taskset", "-c", cpu_list(chosen.restricted_to), *words]
    closing = ["--use_tpu=False", "--kmp_blocktime", str(request.kmp_blocktime)]
    is_published = is_published_form(request)
    if config is None:
        words += ["--eval_batch_size", str(request.eval_batch_size)]
    elif is_published:
        words += ["--train_batch_size", str(config.global_batch_size)]
        words += ["--train_steps", str(config.train_steps)]
    else:
        words += [f"--recipe={request.recipe_flag}", *request.given.values()]
    if request.job == "parameter_server" and config:
        words += ["--sync_mode=async"] * ("sync_mode" not in request.given)
        words.append(f"--num_ps={config.num_ps}")
    words += ["--num_intra_threads", str(chosen.num_intra_threads)]
    words += ["--num_inter_threads", str(chosen.num_inter_threads)]
    if config and config.accumulation_steps > 1:
        words.append(f"--accumulation_steps={config.accumulation_steps}")
    words += [f"--data_dir={DATA_DIR}", f"--model_dir={MODEL_DIR}"]
    return words + closing * (is_published or config is None)


def is_published_form(request: Request) -> bool:
    """Returns whether the command has the form in which the 24K run was published.

    It names no recipe, since that of the run is the program's default.
    """
    return (
        request.job == "train"
        and request.recipe == imagenet.TPU_90EP_24K
        and set(request.given) <= _OF_PUBLISHED_COMMAND
    )


def shell(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Returns words as a shell reads them, with variables in place of names.

    Args:
        words: The words, which may have names such as `DATA_DIR` in them.
        variables: The text of the shell for each name.
    """
    quoted = [shlex.quote(word) for word in words]
    for name, text in variables.items():
        quoted = [word.replace(name, text) for word in quoted]
    return quoted
