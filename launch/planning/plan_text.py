"""Writes a plan as text for people, and as JSON for programs."""

import dataclasses
import json
import shlex
import textwrap

from launch.nodes.topology import Topology, cpu_list
from launch.planning import job_plan
from launch.planning.job_plan import Plan
from launch.planning.run_numbers import PhaseRates

_WIDTH = 80  # The width of most terminals.
_LABEL = 14
_MOST_BINDINGS = 16  # Further local ranks are only counted.


def describe(plan: Plan, data_dir: str, model_dir: str) -> str:
    """Returns the plan as text: cores, numbers, reasons, warnings and the command.

    Args:
        plan: The plan.
        data_dir: The folder of the records.
        model_dir: The folder of the run.
    """
    lines = []
    for label, text in _facts(plan):
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"{label:{_LABEL}}",
            subsequent_indent=" " * _LABEL,
        )
    changes = plan.numbers.changes if plan.numbers else ()
    for title, sentences in (
        ("Why", plan.reasons),
        ("Changed from the recipe", changes),
        ("Warnings", plan.warnings),
    ):
        if sentences:
            lines += ["", f"{title}:"]
        for sentence in sentences:
            lines += textwrap.wrap(
                f"{sentence}.", _WIDTH, initial_indent="- ", subsequent_indent="  "
            )
    command = shlex.join(plan.command(data_dir, model_dir))
    return "\n".join([*lines, "", f"Command ({plan.dialect.TITLE}):", f"    {command}"])


def to_json(plan: Plan, data_dir: str, model_dir: str) -> str:
    """Returns the plan as a JSON object.

    Args:
        plan: The plan.
        data_dir: The folder of the records.
        model_dir: The folder of the run.
    """
    values = {
        "job": plan.job,
        "launcher": plan.launcher,
        "recipe": plan.recipe.name,
        "topology": dataclasses.asdict(plan.topology),
        "layout": dataclasses.asdict(plan.layout),
        "num_processes": plan.shape.num_processes,
        "processes_per_node": plan.shape.processes_per_node,
        "numbers": dataclasses.asdict(plan.numbers) if plan.numbers else None,
        "environment": plan.environment,
        "communication_cpus": job_plan.communication_cpus(plan.layout),
        "command": plan.command(data_dir, model_dir),
        "reasons": plan.reasons,
        "warnings": plan.warnings,
    }
    return json.dumps(values, indent=1)


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """Returns the label and the text of each line about the job."""
    chosen = plan.layout
    facts = [("nodes", _nodes(plan.topology)), ("ranks", _ranks(plan))]
    threads = (
        f"{chosen.cores_per_rank} cores: {chosen.num_intra_threads} intra-op and"
        f" {chosen.num_inter_threads} inter-op thread(s)"
    )
    if chosen.num_communication_cores:
        threads += f"; {chosen.num_communication_cores} left to communication and input"
    facts.append(("each rank", threads))
    facts += _bindings(plan)
    variables = [f"{name}={value}" for name, value in plan.environment.items()]
    facts.append(("environment", f"each rank sets {' '.join(variables)}"))
    return facts + _numbers(plan)


def _nodes(topology: Topology) -> str:
    per_socket = sorted(
        {
            sum(core.socket == socket for core in topology.cores)
            for socket in topology.sockets
        }
    )
    cores = " or ".join(map(str, per_socket))
    text = f"{topology.num_nodes:,} x {len(topology.sockets)} socket(s) x {cores} cores"
    if topology.threads_per_core > 1:
        text += f" x {topology.threads_per_core} hyper-threads"
    if len(topology.numa_nodes) != len(topology.sockets):
        text += f", {len(topology.numa_nodes)} NUMA nodes"
    if topology.cpu_model:
        text += f", {topology.cpu_model}"
    if topology.instruction_sets:
        text += f" ({', '.join(topology.instruction_sets)})"
    if topology.memory_bytes:
        text += f", {topology.memory_bytes / 1e9:.1f} GB"
    for interface in topology.interfaces:
        speed = interface.megabits_per_second / 1000
        known = f"{speed:g} Gbit/s" if speed else "of unknown speed"
        text += f", {interface.name} {known}"
    return f"{text}; {topology.source}"


def _ranks(plan: Plan) -> str:
    chosen, shape = plan.layout, plan.shape
    text = f"{shape.num_processes:,}"
    if plan.job == "parameter_server":
        others = shape.num_processes - chosen.num_ranks
        return (
            f"{text} = 1 coordinator, {others - 1} server(s), {chosen.num_ranks:,}"
            f" workers; at most {shape.processes_per_node} on a node, in turn"
        )
    return f"{text} = {plan.topology.num_nodes:,} nodes x {chosen.ranks_per_node}"


def _bindings(plan: Plan) -> list[tuple[str, str]]:
    """Returns the cores of each local rank, to which it binds itself."""
    chosen = plan.layout
    facts = []
    communication = job_plan.communication_cpus(chosen)
    for rank, cores in enumerate(chosen.cores[:_MOST_BINDINGS]):
        sockets = sorted({core.socket for core in cores})
        text = f"local rank {rank}: socket {cpu_list(sockets)}, {len(cores)} cores"
        if plan.topology.has_cpu_numbers:
            cpus = [cpu for core in cores for cpu in core.cpus]
            text += f", processors {cpu_list(cpus)}"
            if communication:
                text += f", Horovod's thread on {communication[rank]}"
        facts.append(("" if rank else "binding", text))
    if len(chosen.cores) > _MOST_BINDINGS:
        facts.append(("", f"and so on for {len(chosen.cores)} local ranks"))
    return facts


def _numbers(plan: Plan) -> list[tuple[str, str]]:
    """Returns the lines about batch, steps, rates and memory of a training."""
    numbers = plan.numbers
    if numbers is None:
        return []
    kind = "workers" if plan.job == "parameter_server" else "ranks"
    micro_batch = numbers.rank_batch_size // numbers.accumulation_steps
    batch = f"{numbers.global_batch_size:,} = {numbers.num_parts:,} {kind} x"
    batch += f" {micro_batch}"
    if numbers.accumulation_steps > 1:
        batch += f" x {numbers.accumulation_steps} micro-batches"
    rates = [f"{one.name}: {_rates(one)}" for one in numbers.phases]
    return [
        ("recipe", f"{plan.recipe.name}, from {plan.recipe.source}"),
        ("batch", batch),
        ("steps", f"{numbers.num_steps:,} = {numbers.num_epochs:.2f} epochs"),
        *(("" if index else "rates", text) for index, text in enumerate(rates)),
        (
            "memory",
            f"about {numbers.rank_memory_bytes / 1e9:.1f} GB for each rank, about"
            f" {plan.layout.ranks_per_node * numbers.rank_memory_bytes / 1e9:.1f} GB on"
            " a node",
        ),
        (
            "gradients",
            f"{numbers.num_parameters:,} values with {numbers.num_classes:,} classes,"
            f" {numbers.gradient_bytes / 1e6:.1f} MB in float32",
        ),
    ]


def _rates(phase: PhaseRates) -> str:
    text = f"{phase.init_rate:.4g}"
    if phase.warmup_steps:
        text += f" to {phase.peak_rate:.4g} over {phase.warmup_steps:,} steps,"
    return f"{text} to {phase.last_rate:.4g} at the end of {phase.num_steps:,} steps"
