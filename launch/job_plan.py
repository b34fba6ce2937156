"""From the nodes of a cluster and a recipe to the plan of a job: pure functions."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from launch import layout
from launch.dialects import DIALECTS, Dialect, JobShape
from launch.layout import Layout
from launch.topology import OF_THIS_MACHINE, Topology, cpu_list
from resnet.base import commands
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.base.text import counted
from resnet.config import explain, rounds
from resnet.config.command_line import JobSettings
from resnet.config.config import Derived
from resnet.config.phases import Phase
from resnet.config.recipe import Recipe
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.config.rules import check_start
from resnet.hardware import placement

_TRAINING = "resnet/resnet_main.py"
PROGRAMS = {
    "train": _TRAINING,
    "eval": "eval/resnet_eval.py",
    "parameter_server": _TRAINING,
}
# What stands for the folders in the words of a program, and for the clone.
DATA_DIR, MODEL_DIR, CLONE = "@DATA_DIR@", "@MODEL_DIR@", "@CLONE@/"
_PYTHON = "python"  # In front of it may be a restriction to some cores.
# Settings with whose flags the published command still says the whole run.
_OF_PUBLISHED_COMMAND = {"global_batch_size", "train_steps", "kmp_blocktime"}
_USABLE_MEMORY = 0.9  # The rest is for the system, and for its cache of the records.
_LONG_EXCHANGE_SECONDS = 0.1  # A longer one is worth a word.


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """The job, and what is done with its plan."""

    TOPIC: ClassVar[str] = "Job and output"

    launcher: str = setting(
        "mpich",
        "The launcher or scheduler, one of {names}; mpich is that of any Hydra.",
        names=tuple(DIALECTS),
        common=True,
    )
    job: str = setting(
        "train",
        "What is planned, one of {names} (an asynchronous training).",
        names=tuple(PROGRAMS),
        common=True,
    )
    output: str = setting(
        "plan",
        "What is printed, one of {names}. A script is a batch file for a scheduler; the"
        " last two are JSON about the nodes, and about this host.",
        names=("plan", "command", "script", "json", "topology", "host"),
        flag="print",
        common=True,
    )
    check: bool = setting(
        False,
        "Check the hosts and start the ranks once, instead of printing the plan.",
        common=True,
    )
    run: bool = setting(
        False,
        "Check, then run the job supervised, with rank and host before each line.",
        common=True,
    )
    ranks_per_node: int | None = setting(
        None,
        "The number of ranks on each node; of workers in an asynchronous training.",
        bounds=COUNT,
        common=True,
        unset="one per NUMA node",
    )
    num_servers: int | None = setting(
        None,
        "The number of parameter servers.",
        bounds=COUNT,
        short_flag="s",
        aliases=(("num_ps", ""),),
        unset="one less than nodes",
    )
    run_name: str = setting(
        "",
        "The name of the job and, without --model_dir, of its folder in OUTPUT_DIR.",
        unset="that of `--model_dir`, or the recipe",
    )
    time_limit: str = setting("24:00", "The time limit of a batch job, as HH:MM.")
    partition: str = setting(
        "", "The partition or queue of a batch job.", unset="the site's"
    )
    srun_mpi: str = setting(
        "",
        "The plugin by which srun starts MPI programs (srun --mpi=list).",
        unset="the site's",
    )
    stage_from: str = setting(
        "", "A shared folder whose records a script copies to each node's --data_dir."
    )
    bundle: str = setting(
        "", "A shared archive of `make bundle`, which each node of a script runs from."
    )
    clone: str | None = setting(
        None,
        "The path of this clone on the cluster; if empty, a script looks for it.",
        unset="its path here",
    )


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a plan is asked for."""

    flags: JobFlags
    threads: JobSettings  # 0 chooses their numbers.
    recipe: Recipe
    recipe_flag: str  # The value of --recipe that names it.
    overrides: Mapping[str, Any]
    num_train_examples: int
    # The words of flags that the training gets too, by their settings' names.
    passed_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    class_names: tuple[str, ...] = ()  # Empty if they aren't known.
    multi_label: bool = False  # Of the data set.
    eval_batch_size: int = 200
    hosts_file: str = ""


@dataclass(frozen=True)
class JobPlan:
    """A job, planned: what was asked for, and what follows from it."""

    request: Request
    topology: Topology
    layout: Layout
    shape: JobShape
    run: Derived | None  # The numbers of a training.
    changes: tuple[str, ...]  # How it differs from the recipe.
    program: tuple[str, ...]  # Its words, with `DATA_DIR` and such in them.
    environment: dict[str, str | None]  # That all ranks set to the same.
    reasons: tuple[str, ...]  # Why the plan is so, in sentences.
    warnings: tuple[str, ...]  # What may be wrong or slow, in sentences.

    @property
    def job(self) -> str:
        """One of `PROGRAMS`."""
        return self.request.flags.job

    @property
    def dialect(self) -> Dialect:
        """The launcher's dialect."""
        return DIALECTS[self.request.flags.launcher]

    @property
    def is_launched(self) -> bool:
        """Whether a launcher starts the job; a single process here needs none."""
        is_elsewhere = self.dialect.starts_any or bool(self.shape.hosts_file)
        return self.shape.num_processes > 1 or is_elsewhere

    def command(
        self,
        data_dir: str,
        model_dir: str,
        clone: str = "",
        python: str = _PYTHON,
        options: Sequence[str] = (),
    ) -> list[str]:
        """Returns the words of the command; the path of the clone ends in a slash.

        Without a path they are those that a user types.
        """
        folders = {DATA_DIR: data_dir, MODEL_DIR: model_dir, CLONE: clone}
        words = list(self.program[self.program.index(_PYTHON) + 1 :])
        for name, folder in folders.items():
            words = [word.replace(name, folder) for word in words]
        if commands.IS_INSTALLED and not clone:
            return self.launched([commands.NAMES[words[0]], *words[1:]], options)
        return self.launched([python, *words], options)

    def launched(
        self, program: Sequence[str], options: Sequence[str] = ()
    ) -> list[str]:
        """Returns the words by which each rank runs a program, on the usable cores."""
        words = [*self.program[: self.program.index(_PYTHON)], *program]
        if not self.is_launched:
            return words
        return [*self.dialect.command(self.shape, options), *words]

    def communication_cpus(self) -> list[int]:
        """Returns the logical processor of each local rank's Horovod thread, if any."""
        ranks = range(len(self.layout.cores))
        cpus = [_threads(self.layout, rank).communication_cpu for rank in ranks]
        return [cpu for cpu in cpus if cpu is not None]


def make(topology: Topology, request: Request) -> JobPlan:
    """Returns the plan of a job; UserError if nodes, batch or a setting forbid it."""
    _require_servers(request)
    flags, threads = request.flags, request.threads
    chosen = layout.choose(
        topology,
        flags.ranks_per_node,
        threads.num_intra_threads,
        threads.num_inter_threads,
    )
    num_servers = 0
    if flags.job == "parameter_server":
        # With the coordinator, each node then has one rank that hardly computes.
        num_servers = flags.num_servers or max(topology.num_nodes - 1, 1)
        overrides = {**request.overrides, "sync_mode": "async", "num_ps": num_servers}
        request = dataclasses.replace(request, overrides=overrides)
    shape = _shape(topology, chosen, request, num_servers)
    dialect = DIALECTS[flags.launcher]
    run, changes = None, list[str]()
    reasons = list(chosen.reasons)
    warnings = [*chosen.warnings, *_warnings_of_nodes(topology, shape, dialect)]
    if flags.job != "eval":
        memory_bytes = topology.memory_bytes // chosen.ranks_per_node
        run, accumulation = _resolve(request, shape.num_processes, memory_bytes)
        changes = explain.describe_changes(request.recipe, request.overrides, run)
        reasons += accumulation
        warnings += _warnings_of_run(topology, chosen, run)
    warnings += _warnings_of_servers(shape, num_servers)
    warnings += unused_cpus(shape, dialect, chosen)
    of_rank = dataclasses.replace(_threads(chosen, 0), communication_cpu=None)
    return JobPlan(
        request=request,
        topology=topology,
        layout=chosen,
        shape=shape,
        run=run,
        changes=tuple(changes),
        program=tuple(_program(request, topology, chosen, run)),
        environment=placement.environment(of_rank, threads.kmp_blocktime, False, {}),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def _resolve(
    request: Request, num_ranks: int, memory_bytes: int
) -> tuple[Derived, list[str]]:
    """Returns the training, and why its gradients are accumulated, if they are.

    Unless the request says over how many micro-batches, they are over as many as it
    takes for the images of a rank to fit into its memory, 0 if it isn't known.
    """
    config = resolve(
        request.recipe,
        request.overrides,
        request.num_train_examples,
        request.class_names,
        request.multi_label,
    )
    num_parts = explain.num_parts(config, num_ranks)
    check_start(request.recipe, config, num_parts)
    run = Derived(config, num_parts)
    if not memory_bytes or request.overrides.get("accumulation_steps") is not None:
        return run, []
    examples = config.global_batch_size // num_parts
    is_mixed = any(phase.mixup or phase.cutmix for phase in config.phases)
    runs = [
        dataclasses.replace(
            run, config=dataclasses.replace(config, accumulation_steps=steps)
        )
        for steps in range(1, 1 if config.is_async else examples + 1)
        if examples % steps == 0 and not (is_mixed and examples // steps % 2)
    ] or [run]
    for fitting in runs:
        if fitting.rank_memory_bytes <= _USABLE_MEMORY * memory_bytes:
            break
    else:
        raise UserError(
            f"a rank must fit into its part of the memory, {memory_bytes / 1e9:.1f} GB;"
            f" it would take {runs[-1].rank_memory_bytes / 1e9:.1f} GB even with the"
            " smallest micro-batch. Use fewer ranks on a node."
        )
    if fitting.config.accumulation_steps == 1:
        return fitting, []
    return fitting, [
        f"{examples} examples at once would take {run.rank_memory_bytes / 1e9:.1f} GB"
        f" of a rank's {memory_bytes / 1e9:.1f} GB, so gradients are accumulated over"
        f" {fitting.config.accumulation_steps} micro-batches"
    ]


def _threads(chosen: Layout, local_rank: int) -> placement.Threads:
    """Returns the threads of a rank, as it chooses them itself."""
    return placement.choose_threads(
        [core.cpus for core in chosen.cores[local_rank]],
        chosen.num_intra_threads,
        chosen.num_inter_threads,
    )


def _require_servers(request: Request) -> None:
    """Refuses an asynchronous training without parameter servers, and the converse."""
    flags, mode = request.flags, request.overrides.get("sync_mode")
    has_servers = flags.job == "parameter_server"
    if flags.num_servers is not None and not has_servers:
        raise UserError(
            "only --job=parameter_server has parameter servers; got"
            f" --num_servers={flags.num_servers} with --job={flags.job}."
        )
    if has_servers and mode not in (None, "async"):
        raise UserError(
            f"--job=parameter_server must have --sync_mode=async; got {mode}."
        )
    if (mode or request.recipe.sync_mode) == "async" and flags.job == "train":
        raise UserError(
            "--sync_mode=async needs parameter servers. Use --job=parameter_server."
        )


def _shape(
    topology: Topology, chosen: Layout, request: Request, num_servers: int
) -> JobShape:
    """Returns the processes of a job; with servers there is a coordinator, too."""
    num_processes, per_node = chosen.num_ranks, chosen.ranks_per_node
    if num_servers:
        num_processes += 1 + num_servers
        per_node = math.ceil(num_processes / topology.num_nodes)
    return JobShape(
        num_nodes=topology.num_nodes,
        num_processes=num_processes,
        processes_per_node=per_node,
        cpus_per_node=sum(len(core.cpus) for cores in chosen.cores for core in cores),
        goes_round=num_servers > 0,
        hosts_file=request.hosts_file,
        srun_mpi=request.flags.srun_mpi,
    )


def _program(
    request: Request, topology: Topology, chosen: Layout, run: Derived | None
) -> list[str]:
    """Returns the words of the program; without a run those of an evaluation."""
    config, job = run.config if run else None, request.flags.job
    words = [_PYTHON, CLONE + PROGRAMS[job]]
    if chosen.restricted_to and topology.has_cpu_numbers:
        words = ["taskset", "-c", cpu_list(chosen.restricted_to), *words]
    # The published command of the 24K run names no recipe: it is the default.
    is_published = (
        job == "train"
        and request.recipe == imagenet.TPU_90EP_24K
        and set(request.passed_on) <= _OF_PUBLISHED_COMMAND
    )
    if config is None:
        words += ["--eval_batch_size", str(request.eval_batch_size)]
    elif is_published:
        words += ["--train_batch_size", str(config.global_batch_size)]
        words += ["--train_steps", str(config.train_steps)]
    else:
        words += [f"--recipe={request.recipe_flag}", *request.passed_on.values()]
    if job == "parameter_server" and config:
        words += ["--sync_mode=async"] * ("sync_mode" not in request.passed_on)
        words.append(f"--num_ps={config.num_ps}")
    words += ["--num_intra_threads", str(chosen.num_intra_threads)]
    words += ["--num_inter_threads", str(chosen.num_inter_threads)]
    if config and config.accumulation_steps > 1:
        words.append(f"--accumulation_steps={config.accumulation_steps}")
    words += [f"--data_dir={DATA_DIR}", f"--model_dir={MODEL_DIR}"]
    closing = ["--use_tpu=False", "--kmp_blocktime", str(request.threads.kmp_blocktime)]
    return words + closing * (is_published or config is None)


def _warnings_of_nodes(
    topology: Topology, shape: JobShape, dialect: Dialect
) -> Iterator[str]:
    if topology.num_nodes > 1 and not (dialect.header or shape.hosts_file):
        yield (
            "no hosts are named: outside of a scheduler's job, all ranks start on this"
            " machine. Write the name of a host on each line of a file, and name it"
            " with --hosts=FILE"
        )
    if topology.num_nodes > 1 and topology.source == OF_THIS_MACHINE:
        yield (
            f"the {topology.num_nodes} nodes are taken to be like this machine: where"
            " that is a login node, probe on a node and plan with --topology"
        )
    if topology.has_cpu_numbers:
        return
    yield (
        "the nodes are as stated, not as found: `--probe` on a node also finds"
        " hyper-threads, sub-NUMA clusters, limits of cgroups, memory and"
        " instruction sets"
    )
    if dialect.header and topology.threads_per_core == 1:
        yield (
            "schedulers count logical processors: where hyper-threads are on, give"
            " --threads_per_core=2, or a job gets half of the cores"
        )


def _warnings_of_run(topology: Topology, chosen: Layout, run: Derived) -> Iterator[str]:
    yield from explain.warnings(run)
    if not topology.memory_bytes:
        yield (
            "the memory of a node isn't known (--memory_gb), so it isn't checked that"
            f" it suffices for {counted(chosen.ranks_per_node, 'rank')} of about"
            f" {run.rank_memory_bytes / 1e9:.1f} GB"
        )
    known = set(topology.instruction_sets)
    if known and not known & {"avx2", "asimd"}:
        yield (
            "the processor has neither AVX2 nor NEON, of which the compiled"
            " convolutions need one: stock ops are used, which are slower"
        )
    elif known & {"avx512_bf16", "amx_bf16"} and run.config.precision == "float32":
        yield (
            "the processor has instructions for bfloat16, and the run computes in"
            " float32; --precision=auto measures which of both is faster"
        )
    speeds = [interface.megabits_per_second for interface in topology.interfaces]
    speed = max(speeds, default=0) / 1000  # 0 if none is known.
    if speed and run.config.compress == "none":
        # The least time of an all-reduce (Patarasuk and Yuan 2009).
        others = (topology.num_nodes - 1) / topology.num_nodes
        seconds = 8 * 2 * others * run.gradient_bytes / (speed * 1e9)
        seconds *= _exchanges_per_step(run.config.phases)
        if seconds > _LONG_EXCHANGE_SECONDS:
            yield (
                f"the fastest interface has {speed:g} Gbit/s, over which the gradients"
                f" take at least {seconds:.2g} s a step: see docs/compression.md and"
                " docs/local_sgd.md"
            )


def _exchanges_per_step(phases: tuple[Phase, ...]) -> float:
    bounds = (rounds.bounds_of_phase(phases, index) for index in range(len(phases)))
    num_rounds = sum(len(of_phase) - 1 for of_phase in bounds)
    return num_rounds / sum(phase.num_steps for phase in phases)


def _warnings_of_servers(shape: JobShape, num_servers: int) -> Iterator[str]:
    num_others = num_servers + 1
    if num_servers and num_others % shape.num_nodes:
        even = shape.num_nodes * -(-num_others // shape.num_nodes) - 1
        yield (
            f"coordinator and servers ({num_servers}) can't be shared evenly by"
            f" {shape.num_nodes} nodes, so that some nodes have more workers than"
            f" others. --num_servers={even} avoids it"
        )


def unused_cpus(shape: JobShape, dialect: Dialect, chosen: Layout) -> Iterator[str]:
    """Yields the warning about processors that srun leaves unused.

    Each task of a node gets the same number (srun(1): --cpus-per-task, --exact).
    """
    size = shape.processes_per_node
    lost = shape.cpus_per_node % size
    if not dialect.rounds_cpus or not lost:
        return
    num_others = size - chosen.ranks_per_node  # Servers and the coordinator.
    even = [
        number - num_others
        for number in range(num_others + 1, chosen.cores_per_node + 1)
        if chosen.cores_per_node % number == 0
    ]
    better = min(even, key=lambda ranks: abs(ranks - chosen.ranks_per_node), default=0)
    advice = f"--ranks_per_node={better} avoids it, and so does" if better else "Use"
    yield (
        f"{dialect.program} gives each of the {size} processes of a node"
        f" {shape.cpus_per_process} of its {shape.cpus_per_node} processors, so"
        f" that {lost} are unused. {advice} mpirun (--launcher=mpich, or the batch file"
        " without LAUNCHER=srun)"
    )
