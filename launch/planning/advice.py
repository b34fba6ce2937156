"""Warnings about a planned job, each with its reason."""

from launch.dialects.job_shape import JobShape
from launch.nodes.topology import OF_THIS_MACHINE, Topology
from launch.planning.layout import Layout
from launch.planning.run_numbers import RunNumbers
from resnet.config.config import Config

# An exchange that takes a larger part of a second is worth a word.
_LONG_EXCHANGE_SECONDS = 0.1
_SCHEDULERS = ("slurm", "lsf", "pbs")


def of_topology(topology: Topology, launcher: str) -> list[str]:
    """Returns the warnings about what isn't known of the nodes."""
    warnings = []
    if topology.num_nodes > 1 and topology.source == OF_THIS_MACHINE:
        warnings.append(
            f"the {topology.num_nodes} nodes are taken to be like this machine: where"
            " that is a login node, probe on a node and plan with --topology"
        )
    if not topology.has_cpu_numbers:
        warnings.append(
            "the nodes are as stated, not as found: `--probe` on a node also finds"
            " hyper-threads, sub-NUMA clusters, limits of cgroups, memory and"
            " instruction sets"
        )
        if launcher in _SCHEDULERS and topology.threads_per_core == 1:
            warnings.append(
                "schedulers count logical processors: where hyper-threads are on, give"
                " --threads_per_core=2, or a job gets half of the cores"
            )
    return warnings


def of_run(
    topology: Topology, layout: Layout, config: Config, numbers: RunNumbers
) -> list[str]:
    """Returns the warnings about a training on the nodes.

    Args:
        topology: The nodes.
        layout: The ranks and their cores.
        config: The settings of the run.
        numbers: The numbers of the run.
    """
    warnings = []
    if not topology.memory_bytes:
        warnings.append(
            "the memory of a node isn't known (--memory_gb), so it isn't checked that"
            f" {layout.ranks_per_node} rank(s) of about"
            f" {numbers.rank_memory_bytes / 1e9:.1f} GB fit"
        )
    warnings += _of_instruction_sets(topology, config)
    seconds = exchange_seconds(topology, numbers)
    if seconds > _LONG_EXCHANGE_SECONDS and config.compress == "none":
        warnings.append(
            f"the fastest interface has {topology.gigabits_per_second:g} Gbit/s, over"
            f" which the gradients take at least {seconds:.2g} s in each step: see"
            " docs/compression.md and docs/local_sgd.md"
        )
    return warnings


def _of_instruction_sets(topology: Topology, config: Config) -> list[str]:
    if not topology.instruction_sets:
        return []
    if "avx2" not in topology.instruction_sets:
        return [
            "the processor has no AVX2, which the compiled convolutions need: stock"
            " ops are used, which are slower"
        ]
    has_bf16 = bool({"avx512_bf16", "amx_bf16"} & set(topology.instruction_sets))
    if has_bf16 and config.precision == "float32":
        return [
            "the processor has instructions for bfloat16, and the run computes in"
            " float32: --precision=bf16 is faster, and --precision=auto measures both"
        ]
    return []


def exchange_seconds(topology: Topology, numbers: RunNumbers) -> float:
    """Returns the least time in which the nodes can exchange the gradients of a step.

    Each node has to send and receive about twice the gradients (Patarasuk and Yuan
    2009, doi:10.1016/j.jpdc.2008.09.002). It is 0 on one node, or if the speed of the
    network isn't known.
    """
    speed = topology.gigabits_per_second
    if topology.num_nodes == 1 or not speed:
        return 0.0
    sent = 2 * (topology.num_nodes - 1) / topology.num_nodes * numbers.gradient_bytes
    return 8 * sent / (speed * 1e9)


def of_srun(shape: JobShape, launcher: str, layout: Layout) -> list[str]:
    """Returns the warnings about processors that srun leaves unused.

    It gives each task of a node the same number, and a step only those of its tasks
    (srun(1): --cpus-per-task implies --exact).
    """
    size = shape.processes_per_node
    lost = shape.cpus_per_node % size
    if launcher != "slurm" or not lost:
        return []
    num_others = size - layout.ranks_per_node  # Servers and the coordinator.
    even = [
        number - num_others
        for number in range(num_others + 1, layout.cores_per_node + 1)
        if layout.cores_per_node % number == 0
    ]
    better = min(even, key=lambda one: abs(one - layout.ranks_per_node), default=0)
    advice = f"--ranks_per_node={better} avoids it, and so does" if better else "Use"
    return [
        f"srun gives each of the {size} processes of a node"
        f" {shape.cpus_per_node // size} of its {shape.cpus_per_node} processors, so"
        f" that {lost} are unused. {advice} mpirun (--launcher=mpich, or the batch file"
        " without LAUNCHER=srun)"
    ]


def of_servers(shape: JobShape, job: str, workers_per_node: int) -> list[str]:
    """Returns the warnings about the ranks of an asynchronous training."""
    num_others = shape.num_processes - workers_per_node * shape.num_nodes
    if job != "parameter_server" or num_others % shape.num_nodes == 0:
        return []
    return [
        f"the coordinator and {num_others - 1} server(s) can't be shared evenly by"
        f" {shape.num_nodes} nodes, so that some nodes have more workers than others."
        f" --num_servers={shape.num_nodes * -(-num_others // shape.num_nodes) - 1}"
        " avoids it"
    ]
