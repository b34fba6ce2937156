"""Tells a plan: as text for people, as JSON for programs, and as a script.

A script is a batch file for a scheduler, or for a shell. It reads the settings of a
site from launch/jobs/site.sh, and stages the records by launch/jobs/stage.sh.
"""

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch import job_plan
from launch.dialects import BatchSettings
from launch.job_plan import JobFlags, JobPlan
from launch.topology import Topology, cpu_list
from resnet.base.errors import UserError
from resnet.base.text import counted, hanging, listed
from resnet.config import explain
from resnet.config.config import Derived

ROOT = Path(__file__).resolve().parents[1]
_MOST_BINDINGS = 16  # Further local ranks are only counted.


def describe(plan: JobPlan, data_dir: str, model_dir: str) -> str:
    """Returns the plan as text: cores, numbers, reasons, warnings and the command."""
    lines = []
    for label, text in _facts(plan):
        lines += hanging(f"{label:14}", text)
    for title, phrases in (
        ("Why", plan.reasons),
        ("Changed from the recipe", plan.changes),
        ("Warnings", plan.warnings),
    ):
        lines += listed(title, [f"{phrase}." for phrase in phrases])
    command = shlex.join(plan.command(data_dir, model_dir))
    lines += ["", f"Command ({plan.dialect.title}):", f"    {command}"]
    return "\n".join(lines)


def to_json(plan: JobPlan, data_dir: str, model_dir: str) -> str:
    """Returns the plan as a JSON object."""
    values = {
        "job": plan.job,
        "launcher": plan.request.flags.launcher,
        "recipe": plan.request.recipe.name,
        "topology": dataclasses.asdict(plan.topology),
        "layout": dataclasses.asdict(plan.layout),
        "num_processes": plan.shape.num_processes,
        "processes_per_node": plan.shape.processes_per_node,
        "numbers": _numbers(plan, plan.run) if plan.run else None,
        "environment": plan.environment,
        "communication_cpus": plan.communication_cpus(),
        "command": plan.command(data_dir, model_dir),
        "reasons": plan.reasons,
        "warnings": plan.warnings,
    }
    return json.dumps(values, indent=1)


def _facts(plan: JobPlan) -> Iterator[tuple[str, str]]:
    chosen = plan.layout
    threads = (
        f"{counted(chosen.cores_per_rank, 'core')}: {chosen.num_intra_threads} intra-op"
        f" and {counted(chosen.num_inter_threads, 'inter-op thread')}"
    )
    if chosen.num_communication_cores:
        threads += f"; {chosen.num_communication_cores} left to communication and input"
    variables = [f"{name}={value}" for name, value in plan.environment.items()]
    yield "nodes", _nodes(plan.topology)
    yield "ranks", _ranks(plan)
    yield "each rank", threads
    yield from zip(("binding", *[""] * _MOST_BINDINGS), _bindings(plan), strict=False)
    yield "environment", f"each rank sets {' '.join(variables)}"
    if plan.run:
        yield from _training(plan, plan.run)


def _nodes(topology: Topology) -> str:
    sockets = [core.socket for core in topology.cores]
    sizes = sorted({sockets.count(socket) for socket in topology.sockets})
    cores = " or ".join(map(str, sizes))
    text = f"{topology.num_nodes:,} x {counted(len(topology.sockets), 'socket')} x"
    text += f" {cores} {'core' if cores == '1' else 'cores'}"
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


def _ranks(plan: JobPlan) -> str:
    num_processes, num_ranks = plan.shape.num_processes, plan.layout.num_ranks
    text = f"{counted(plan.topology.num_nodes, 'node')} x {plan.layout.ranks_per_node}"
    if plan.job == "parameter_server":
        num_servers = num_processes - num_ranks - 1
        text = (
            f"1 coordinator, {counted(num_servers, 'server')}, {num_ranks:,}"
            f" workers; at most {plan.shape.processes_per_node} on a node, in turn"
        )
    return f"{num_processes:,} = {text}"


def _bindings(plan: JobPlan) -> Iterator[str]:
    """Yields the cores of each local rank, to which it binds itself."""
    communication = plan.communication_cpus()
    for rank, cores in enumerate(plan.layout.cores[:_MOST_BINDINGS]):
        sockets = sorted({core.socket for core in cores})
        text = f"local rank {rank}: socket {cpu_list(sockets)}"
        text += f", {counted(len(cores), 'core')}"
        if plan.topology.has_cpu_numbers:
            cpus = [cpu for core in cores for cpu in core.cpus]
            text += f", processors {cpu_list(cpus)}"
            if communication:
                text += f", Horovod's thread on {communication[rank]}"
        yield text
    if len(plan.layout.cores) > _MOST_BINDINGS:
        yield f"and so on for {len(plan.layout.cores)} local ranks"


def _part(plan: JobPlan) -> str:
    """Returns what the processes are called that share a batch."""
    return "worker" if plan.job == "parameter_server" else "rank"


def _training(plan: JobPlan, run: Derived) -> Iterator[tuple[str, str]]:
    recipe, num_steps = plan.request.recipe, run.config.last_step - run.first_step
    yield "recipe", f"{recipe.name}, from {recipe.source}"
    yield "batch", explain.batch_of(run, _part(plan))
    yield "steps", f"{num_steps:,} = {run.config.epoch(num_steps):.2f} epochs"
    for index, phase in enumerate(run.phases):
        text = f"{phase.settings.name}: {phase.rates[0]:.4g}"
        if phase.warmup_steps:
            text += f" to {phase.peak_rate:.4g} over {phase.warmup_steps:,} steps,"
        text += f" to {phase.rates[-1]:.4g} at the end of"
        yield "" if index else "rates", f"{text} {phase.settings.num_steps:,} steps"
    rank_memory = run.rank_memory_bytes / 1e9
    on_node = plan.layout.ranks_per_node * rank_memory
    yield (
        "memory",
        f"about {rank_memory:.1f} GB for each rank, about {on_node:.1f} GB on a node",
    )
    yield (
        "gradients",
        f"{run.num_parameters:,} values with {run.config.num_classes:,} classes,"
        f" {run.gradient_bytes / 1e6:.1f} MB in float32",
    )


def _numbers(plan: JobPlan, run: Derived) -> dict[str, Any]:
    config, num_steps = run.config, run.config.last_step - run.first_step
    return {
        "global_batch_size": config.global_batch_size,
        "num_parts": run.num_parts,
        "rank_batch_size": config.global_batch_size // run.num_parts,
        "accumulation_steps": config.accumulation_steps,
        "num_steps": num_steps,
        "num_epochs": config.epoch(num_steps),
        "phases": [
            {
                "name": phase.settings.name,
                "first_step": phase.first_step,
                "num_steps": phase.settings.num_steps,
                "init_rate": phase.rates[0],
                "peak_rate": phase.peak_rate,
                "warmup_steps": phase.warmup_steps,
                "last_rate": phase.rates[-1],
            }
            for phase in run.phases
        ],
        "num_classes": config.num_classes,
        "num_parameters": run.num_parameters,
        "gradient_bytes": run.gradient_bytes,
        "rank_memory_bytes": run.rank_memory_bytes,
        "changes": plan.changes,
        "reasons": plan.reasons[len(plan.layout.reasons) :],
    }


def script(plan: JobPlan, data_dir: str, model_dir: str, written_by: str) -> str:
    """Returns the script of a job; empty folders are left to launch/jobs/site.sh."""
    dialect, flags = plan.dialect, plan.request.flags
    if flags.stage_from and not data_dir:
        raise UserError("--stage_from needs --data_dir, to copy the records to.")
    run_dir = Path(model_dir).name
    batch = _batch_settings(flags, run_dir or plan.request.recipe_flag)
    clone = str(ROOT) if flags.clone is None else flags.clone
    defaults = {
        "DATA_DIR": data_dir,
        "OUTPUT_DIR": str(Path(model_dir).parent) if model_dir else "",
        "HOSTFILE": plan.shape.hosts_file,
    }
    requeues = bool(dialect.run) and batch.is_resumed
    # As the published evaluation had it, for an OpenMP build of TensorFlow.
    launcher = [f"export OMP_NUM_THREADS={plan.layout.num_intra_threads}"]
    start = [dialect.run if requeues else "exec"]
    if plan.shape.num_processes > 1 or plan.shape.hosts_file:
        launcher = dialect.launcher_lines(plan.shape)
        start.append('"${launcher[@]}"')
    lines = [
        "#!/usr/bin/env bash",
        *textwrap.wrap(_title(plan), 88, initial_indent="# ", subsequent_indent="# "),
        f"# Written by: {written_by}",
        *dialect.batch_header(plan.shape, batch),
        "# module load ...   # The modules that `make venv` used; above `set`, since"
        " many modules",
        "#                   # use unset variables.",
        "set -euo pipefail",
        *dialect.enter_folder,
        "",
        *(
            [f"REPOSITORY=${{REPOSITORY:-{shlex.quote(clone)}}}"]
            if clone
            else dialect.find_clone
        ),
        "export REPOSITORY",
        '[ -f "$REPOSITORY/launch/jobs/site.sh" ] || {',
        '  echo "$0: there is no clone of resnet-cpu in $REPOSITORY: set REPOSITORY."'
        " >&2",
        "  exit 2",
        "}",
        *(
            f"{name}=${{{name}:-{shlex.quote(value)}}}"
            for name, value in defaults.items()
            if value
        ),
        *(
            f"# shellcheck source-path=SCRIPTDIR source={name}\n"
            f'source "$REPOSITORY/launch/jobs/{name}"'
            for name in ("site.sh", *["requeue.sh"] * requeues)
        ),
        "",
        *_unpacking(plan, flags.bundle),
        *_staging(plan, flags.stage_from),
        *launcher,
        *dialect.limit_lines(batch),
        *_broken([*start, *_words(plan, run_dir or batch.name), '"$@"']),
    ]
    return "\n".join(lines)


def _batch_settings(flags: JobFlags, name: str) -> BatchSettings:
    match = re.fullmatch(r"(\d{1,4}):([0-5]\d)", flags.time_limit)
    if not match or match[0].replace("0", "") == ":":
        got = f"such as 04:00; got {flags.time_limit!r}."
        raise UserError(f"--time_limit must be hours and minutes, {got}")
    # The last part of a folder's name may have other characters, such as a space.
    name = flags.run_name or re.sub(r"[^\w.-]", "_", name)
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(
            f"the name of a job must have letters, digits and any of _.- only; got"
            f" {name!r}. Give another one by --run_name."
        )
    return BatchSettings(
        name=name,
        hours=int(match[1]),
        minutes=int(match[2]),
        partition=flags.partition,
        is_resumed=flags.job != "eval",
    )


def _words(plan: JobPlan, run_dir: str) -> list[str]:
    program = job_plan.PROGRAMS[plan.job]
    escaped = re.sub(r'([\\"$`}])', r"\\\1", run_dir)
    variables = {
        job_plan.CLONE + program: f'"$REPOSITORY/{program}"',
        job_plan.DATA_DIR: '"$DATA_DIR"',
        job_plan.MODEL_DIR: f'"${{MODEL_DIR:-$OUTPUT_DIR/{escaped}}}"',
    }
    words = [shlex.quote(word) for word in plan.program]
    for name, text in variables.items():
        words = [word.replace(name, text) for word in words]
    return words


def _title(plan: JobPlan) -> str:
    chosen = plan.layout
    where = counted(plan.topology.num_nodes, "node")
    where += f" with {counted(chosen.cores_per_node, 'core')} each"
    threads = (
        f"Each has {counted(chosen.cores_per_rank, 'core')}:"
        f" {counted(chosen.num_intra_threads, 'thread')}"
        f" compute{'s' if chosen.num_intra_threads == 1 else ''}"
    )
    if left := chosen.num_communication_cores:
        threads += f", Horovod and the input pipeline share the other {left}"
    run, recipe = plan.run, plan.request.recipe
    if run is None:
        return (
            "Evaluates a run on all validation images, by"
            f" {counted(chosen.num_ranks, 'process')} on {where}. {threads}."
        )
    config, num_steps = run.config, run.config.last_step - run.first_step
    return (
        f"Trains the recipe {recipe.name} ({recipe.source}) on {where}."
        f" {config.global_batch_size // run.num_parts} examples per rank x"
        f" {counted(run.num_parts, _part(plan))} = {config.global_batch_size:,};"
        f" {num_steps:,} steps = {config.epoch(num_steps):.2f} epochs. {threads}."
    )


def _once_per_node(plan: JobPlan) -> list[str]:
    """Returns the lines that set `launcher` to start one process on each node."""
    shape = plan.shape
    if shape.num_nodes == 1 and not shape.hosts_file:
        return ["launcher=()"]
    return plan.dialect.launcher_lines(
        dataclasses.replace(
            shape, num_processes=shape.num_nodes, processes_per_node=1, goes_round=False
        )
    )


def _unpacking(plan: JobPlan, archive: str) -> list[str]:
    if not archive:
        return []
    return [
        "# Each node unpacks programs and environment on its disk; the job runs there.",
        *_once_per_node(plan),
        f"run_unpacked {shlex.quote(archive)}",
        "",
    ]


def _staging(plan: JobPlan, folder: str) -> list[str]:
    if not folder:
        return []
    what, parts = "the record files", 1
    if plan.run and plan.run.config.shard_by == "file":
        what, parts = "its own record files", plan.shape.num_nodes
    return [
        f"# Each node copies {what} to its disk.",
        *_once_per_node(plan),
        '"${launcher[@]}" "$REPOSITORY/launch/jobs/stage.sh"'
        f' {shlex.quote(folder)} "$DATA_DIR" {parts}',
        "",
    ]


def _broken(words: list[str]) -> list[str]:
    """Returns a command in lines, each with a flag and its value or several words."""
    lines: list[str] = []
    for word in words:
        is_value = lines and not word.startswith("-") and "--" in lines[-1]
        if lines and (is_value or not word.startswith("-")) and word != '"$@"':
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [
        ("  " if index else "") + line + (" \\" if index < len(lines) - 1 else "")
        for index, line in enumerate(lines)
    ]
