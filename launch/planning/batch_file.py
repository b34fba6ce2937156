"""Writes the plan of a job as a script: a batch file for a scheduler, or for a shell.

The scripts read the settings of a site from launch/jobs/site.sh, and stage the records
by launch/jobs/stage.sh.
"""

import dataclasses
import re
import shlex
import textwrap
from dataclasses import dataclass

from launch.dialects import pbs
from launch.dialects.job_shape import BatchSettings
from launch.planning import job_plan
from launch.planning.job_plan import Plan

_WIDTH = 88
_RUN_OF_SLURM = "run_and_requeue"  # A function of launch/jobs/requeue.sh.
# The folder in which a job was submitted, by the scheduler's name.
_SUBMIT_DIRS = {"lsf": "LS_SUBCWD", "pbs": "PBS_O_WORKDIR"}


@dataclass(frozen=True)
class Folders:
    """The folders of a script; empty ones are left to launch/jobs/site.sh.

    Attributes:
        clone: The clone on the cluster; empty if the script shall look for it, as a
            script in launch/jobs has to.
        data_dir: The records.
        output_dir: The folder in which the run has its own.
        run_dir: The name of the run's own folder; empty for that of the job.
        stage_from: The shared folder whose records are first copied to the `data_dir`
            on each node; empty for no copies.
        stages_shards: Whether each node copies only its own shards.
        bundle: An archive of `make bundle` on a shared disk, which each node unpacks on
            its own and runs the job from; empty for none.
    """

    clone: str = ""
    data_dir: str = ""
    output_dir: str = ""
    run_dir: str = ""
    stage_from: str = ""
    stages_shards: bool = False
    bundle: str = ""


def script(plan: Plan, batch: BatchSettings, folders: Folders, written_by: str) -> str:
    """Returns the script of a job.

    Args:
        plan: The plan.
        batch: What the scheduler is asked for, and the name of the job.
        folders: The folders.
        written_by: The command that writes the script.
    """
    is_slurm_training = plan.launcher == "slurm" and batch.is_resumed
    lines = [
        "#!/usr/bin/env bash",
        *_comment(_title(plan)),
        f"# Written by: {written_by}",
        *plan.dialect.header(plan.shape, batch),
        "# module load ...   # The modules that `make venv` used; above `set`, since"
        " many modules",
        "#                   # use unset variables.",
        "set -euo pipefail",
        *([pbs.ENTER_SUBMIT_DIR] if plan.launcher == "pbs" else []),
        "",
        *_clone(plan.launcher, folders.clone),
        *_defaults(folders, plan.shape.hosts_file),
        "# shellcheck source-path=SCRIPTDIR source=site.sh",
        'source "$REPOSITORY/launch/jobs/site.sh"',
    ]
    if is_slurm_training:
        lines += [
            "# shellcheck source-path=SCRIPTDIR source=requeue.sh",
            'source "$REPOSITORY/launch/jobs/requeue.sh"',
        ]
    lines += ["", *_bundle(plan, folders.bundle), *_staging(plan, folders)]
    start = [_RUN_OF_SLURM if is_slurm_training else "exec"]
    if _needs_launcher(plan):
        lines += plan.dialect.script_launcher(plan.shape)
        start.append('"${launcher[@]}"')
    else:
        # As the published evaluation had it, for an OpenMP build of TensorFlow.
        lines.append(f"export OMP_NUM_THREADS={plan.layout.num_intra_threads}")
    if plan.launcher == "pbs" and batch.is_resumed:
        lines += pbs.before_limit(batch)
    variables = {
        job_plan.CLONE + job_plan.PROGRAMS[plan.job]: '"$REPOSITORY/'
        + job_plan.PROGRAMS[plan.job]
        + '"',
        job_plan.DATA_DIR: '"$DATA_DIR"',
        job_plan.MODEL_DIR: _model_dir(folders.run_dir or batch.name),
    }
    words = [*start, *job_plan.shell(plan.program, variables), '"$@"']
    return "\n".join([*lines, *_broken(words), ""])


def _needs_launcher(plan: Plan) -> bool:
    """Returns whether a launcher starts the program, rather than the script itself."""
    return plan.shape.num_processes > 1 or bool(plan.shape.hosts_file)


def _model_dir(run_dir: str) -> str:
    """Returns the folder of the run as a shell reads it, quoted."""
    escaped = re.sub(r'([\\"$`}])', r"\\\1", run_dir)
    return f'"${{MODEL_DIR:-$OUTPUT_DIR/{escaped}}}"'


def _title(plan: Plan) -> str:
    """Returns what a script does, in a few sentences."""
    chosen = plan.layout
    where = f"{plan.topology.num_nodes} node(s) with {chosen.cores_per_node} cores each"
    threads = (
        f"Each has {chosen.cores_per_rank} cores: {chosen.num_intra_threads} threads"
        " compute"
    )
    if left := chosen.num_communication_cores:
        threads += f", Horovod and the input pipeline share the other {left}"
    if plan.numbers is None:
        return (
            f"Evaluates a run on all validation images, by {chosen.num_ranks}"
            f" process(es) on {where}. {threads}."
        )
    numbers = plan.numbers
    kind = "workers" if plan.job == "parameter_server" else "ranks"
    batch = (
        f"{numbers.rank_batch_size} examples per rank x {numbers.num_parts:,} {kind}"
    )
    return (
        f"Trains the recipe {plan.recipe.name} ({plan.recipe.source}) on {where}."
        f" {batch} = {numbers.global_batch_size:,}; {numbers.num_steps:,} steps ="
        f" {numbers.num_epochs:.2f} epochs. {threads}."
    )


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _clone(launcher: str, clone: str) -> list[str]:
    """Returns the lines that set REPOSITORY, and refuse one that isn't a clone."""
    if clone:
        lines = [f"REPOSITORY=${{REPOSITORY:-{shlex.quote(clone)}}}"]
    elif launcher == "slurm":
        lines = [
            "# Slurm runs a copy of this file, whose clone is where sbatch found it.",
            'file=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null |',
            r"  sed -n 's/^ *Command=\(.*\.slurm\).*/\1/p') || true",
            "[[ $file == */launch/jobs/*.slurm ]] ||"
            " file=${SLURM_SUBMIT_DIR:-.}/launch/jobs/",
            "REPOSITORY=${REPOSITORY:-${file%/launch/jobs/*}}",
        ]
    elif launcher in _SUBMIT_DIRS:
        lines = [f"REPOSITORY=${{REPOSITORY:-${{{_SUBMIT_DIRS[launcher]}:-.}}}}"]
    else:
        here = """$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"""
        lines = [f"REPOSITORY=${{REPOSITORY:-{here}}}"]
    return [
        *lines,
        "export REPOSITORY",
        '[ -f "$REPOSITORY/launch/jobs/site.sh" ] || {',
        '  echo "$0: there is no clone of resnet-cpu in $REPOSITORY: set REPOSITORY."'
        " >&2",
        "  exit 2",
        "}",
    ]


def _defaults(folders: Folders, hosts_file: str) -> list[str]:
    """Returns the lines that set the folders, and the hosts, that are known."""
    values = {
        "DATA_DIR": folders.data_dir,
        "OUTPUT_DIR": folders.output_dir,
        "HOSTFILE": hosts_file,
    }
    return [
        f"{name}=${{{name}:-{shlex.quote(value)}}}"
        for name, value in values.items()
        if value
    ]


def _once_per_node(plan: Plan) -> list[str]:
    """Returns the lines that set `launcher` to start one process on each node."""
    num_nodes = plan.shape.num_nodes
    if num_nodes == 1 and not plan.shape.hosts_file:
        return ["launcher=()"]
    shape = dataclasses.replace(
        plan.shape, num_processes=num_nodes, processes_per_node=1, goes_round=False
    )
    return plan.dialect.script_launcher(shape)


def _bundle(plan: Plan, archive: str) -> list[str]:
    """Returns the lines that unpack programs and environment on the nodes' disks."""
    if not archive:
        return []
    return [
        "# Each node unpacks programs and environment on its disk; the job runs there.",
        *_once_per_node(plan),
        f"run_unpacked {shlex.quote(archive)}",
        "",
    ]


def _staging(plan: Plan, folders: Folders) -> list[str]:
    """Returns the lines that copy the records to the disks of the nodes."""
    if not folders.stage_from:
        return []
    num_nodes = plan.shape.num_nodes
    what = "its own record files" if folders.stages_shards else "the record files"
    parts = num_nodes if folders.stages_shards else 1
    shared = shlex.quote(folders.stage_from)
    words = [
        '"$REPOSITORY/launch/jobs/stage.sh"',
        f"{shared}",
        '"$DATA_DIR"',
        f"{parts}",
    ]
    if num_nodes == 1 and not plan.shape.hosts_file:
        return [
            f"# The record files are copied to {folders.data_dir}.",
            " ".join(words),
            "",
        ]
    return [
        f"# Each node copies {what} to its disk.",
        *_once_per_node(plan),
        " ".join(['"${launcher[@]}"', *words]),
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
