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

import dataclasses
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from launch import check, hosts, job_plan, narrator, topology
from launch.commands import StopRequests
from launch.dialects import DIALECTS
from launch.job_plan import JobFlags, JobPlan, Request
from launch.topology import Topology
from resnet.base import cli, commands
from resnet.base.cli import CommandLine
from resnet.base.errors import EXIT_CODE, UserError
from resnet.base.output import print_result
from resnet.base.settings import AT_LEAST_ZERO, COUNT, setting
from resnet.config import command_line, recipe_file
from resnet.config.command_line import JobSettings, TrainFlags
from resnet.config.config import Config
from resnet.config.recipe import TrainingSettings
from resnet.config.recipes import own
from resnet.runtime import preemption
from resnet.runtime.preemption import REQUEUE_EXIT_CODE

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The flags that together describe a node.
_SOURCES = (["--sockets", "--cores_per_socket"], ["--probe"], ["--topology"])


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The nodes: stated, or where they are read."""

    TOPIC: ClassVar[str] = "Nodes, stated or read"

    num_nodes: int | None = setting(
        None, "The number of nodes of the job.", bounds=COUNT, unset="1"
    )
    sockets: int | None = setting(
        None, "The number of processor sockets of a node.", bounds=COUNT
    )
    cores_per_socket: int | None = setting(
        None, "The number of cores of a socket.", bounds=COUNT
    )
    threads_per_core: int = setting(
        1, "The number of hyper-threads of a core.", bounds=COUNT
    )
    numa_per_socket: int = setting(
        1,
        "The number of NUMA nodes of a socket, above 1 with sub-NUMA clusters.",
        bounds=COUNT,
    )
    memory_gb: float = setting(
        0.0, "The memory of a node in GB; 0 if unknown.", bounds=AT_LEAST_ZERO
    )
    probe: bool = setting(
        False,
        "Read the hardware of this machine or, with --hosts, of each host of the file.",
    )
    hosts: str = setting("", "A file of host names, one per line.", short_flag="H")
    topology: str = setting(
        "", "A file with the output of --probe --print=topology on a node, to plan for."
    )

    def require_one_source(self, given: Mapping[str, str]) -> None:
        """Refuses flags that describe the nodes in no way, in several, or twice."""
        names = ("sockets", "cores_per_socket", "probe", "topology")
        sources = [f"--{name}" for name in names if getattr(self, name)]
        if sources not in _SOURCES:
            raise UserError(
                "expected the nodes by one of --sockets with --cores_per_socket,"
                f" --probe, and --topology=FILE; got {' and '.join(sources) or 'none'}."
            )
        of_stated = ("threads_per_core", "numa_per_socket", "memory_gb")
        words = [f"--{name}" for name in of_stated if name in given]
        if words and not self.sockets:
            raise UserError(
                f"{sources[0]} already describes the nodes; got {', '.join(words)} as"
                " well. Leave it out."
            )

    def host_names(self, launcher: str) -> list[str]:
        """Returns the hosts in the file of --hosts; none without it."""
        if not self.hosts:
            return []
        of_file = hosts.read_file(self.hosts, DIALECTS[launcher])
        names = [host.name for host in of_file]
        if len(set(names)) < len(names):
            raise UserError(
                f"{self.hosts} must name each host once; it names one twice."
            )
        if self.num_nodes not in (None, len(names)):
            raise UserError(
                f"--num_nodes must be the number of hosts in {self.hosts}; got"
                f" {self.num_nodes} and {len(names)} hosts. Leave it out."
            )
        return names

    def read(self, launcher: str) -> Topology:
        """Returns the nodes; UserError if they can't be read."""
        names = self.host_names(launcher)
        num_nodes = len(names) or self.num_nodes or 1
        if self.sockets and self.cores_per_socket:
            return topology.stated(
                num_nodes,
                self.sockets,
                self.cores_per_socket,
                self.threads_per_core,
                self.numa_per_socket,
                round(self.memory_gb * 1e9),
            )
        if self.probe and names:
            requests = StopRequests()
            requests.catch()
            reports, failures = hosts.reports(names, DIALECTS[launcher], "", requests)
            if failures:
                raise UserError(next(iter(failures.values())))
            probed = [(host, report.topology) for host, report in reports.items()]
            return topology.of_hosts(probed)
        node = topology.probe() if self.probe else topology.read(self.topology)
        return topology.repeated(node, num_nodes, names)


# Flags of the training about how it is looked at.
_LOOKING = ("list_recipes", "explain", "explain_plot", "num_ranks")
_TRAINING = tuple(
    dataclasses.replace(flags, without=(*flags.without, "num_ps"), common=False)
    for flags in (
        group if isinstance(group, cli.Flags) else cli.Flags(group)
        for group in command_line.TRAINING
    )
    if flags.kind is not TrainFlags
)
FLAGS: cli.Groups = (
    cli.Flags(NodeFlags, common=True),
    JobFlags,
    cli.Flags(TrainFlags, without=_LOOKING),
    cli.Flags(TrainingSettings, names=("global_batch_size",), has_defaults=False),
    cli.Flags(Config, names=("data_dir",), unset="`RECORDS`"),
    cli.Flags(Config, names=("model_dir",), unset="`MODEL`"),
    *_TRAINING,
)
# Settings of the training's flags that a plan sets by itself.
_PLANNED = {
    *("recipe", "data_dir", "model_dir", "use_tpu"),
    *("num_intra_threads", "num_inter_threads"),
}
_OF_EVALUATION = {"eval_batch_size", "kmp_blocktime"}  # A plan sets them by itself.


def main(argv: Sequence[str]) -> int:
    """Prints what the flags ask for, or checks and runs the job."""
    line = cli.parse(argv, __doc__, FLAGS)
    nodes, job = line.of(NodeFlags), line.of(JobFlags)
    data_dir, model_dir = line.values["data_dir"], line.values["model_dir"]
    if job.output == "host":
        report = hosts.report_of_this(job.stage_from or data_dir)
        print_result(json.dumps(dataclasses.asdict(report)))
        return 0
    nodes.require_one_source(line.given)
    if job.check or job.run:
        return check_and_run(line, nodes, job)
    topology_of_nodes = nodes.read(job.launcher)
    if job.output == "topology":
        print_result(topology.to_json(topology_of_nodes))
        return 0
    plan = job_plan.make(topology_of_nodes, request(line, nodes, job))
    shown_folders = data_dir or "RECORDS", model_dir or "MODEL"
    if job.output == "command":
        text = shlex.join(plan.command(*shown_folders))
    elif job.output == "script":
        start = (
            ["resnet-plan"] if commands.IS_INSTALLED else ["python", "launch/plan.py"]
        )
        written_by = shlex.join([*start, *argv[1:]])
        text = narrator.script(plan, data_dir, model_dir, written_by)
    elif job.output == "json":
        text = narrator.to_json(plan, *shown_folders)
    else:
        text = narrator.describe(plan, *shown_folders)
    print_result(text)
    return 0


def check_and_run(line: CommandLine, nodes: NodeFlags, job: JobFlags) -> int:
    """Prints what a check finds, and runs the job if asked to."""
    data_dir, model_dir = line.values["data_dir"], line.values["model_dir"]
    if job.run:
        command_line.check_folders(data_dir, model_dir)
        for name, folder in (("stage_from", job.stage_from), ("bundle", job.bundle)):
            if folder:
                raise UserError(
                    "--run starts the job without copying anything to the nodes; got"
                    f" --{name}={folder}. Run what --print=script prints."
                )
    requests = StopRequests()
    requests.catch()

    def plan_for(topologies: Mapping[str, Topology]) -> JobPlan:
        if nodes.probe:
            topology_of_nodes = topology.of_hosts(list(topologies.items()))
        else:
            topology_of_nodes = nodes.read(job.launcher)
        return job_plan.make(topology_of_nodes, request(line, nodes, job))

    checked = check.check(
        nodes.host_names(job.launcher) or hosts.of_job(nodes.num_nodes or 1),
        DIALECTS[job.launcher],
        job.stage_from or data_dir,
        plan_for,
        requests,
    )
    if requests.seen:
        print("stopped before the end of the check", file=sys.stderr)
        return REQUEUE_EXIT_CODE
    print_result(checked.describe())
    if not job.run:
        return EXIT_CODE if checked.problems else 0
    if checked.plan is None or not checked.can_run:
        return EXIT_CODE
    dialect, root, start = checked.plan.dialect, ROOT, list[str]()
    if checked.plan.job != "eval":  # A training is supervised.
        start = [sys.executable, str(ROOT / "launch/supervise.py"), "--"]
        # A wheel has the programs of eval and launch in a folder of its own.
        root = pathlib.Path(cli.__file__).parents[2]
    words = checked.plan.command(
        data_dir, model_dir, f"{root}/", sys.executable, dialect.label_options
    )
    pattern = dialect.label if checked.plan.is_launched else ""
    code = requests.run_labelled([*start, *words], pattern, checked.hosts_of_ranks)
    preemption.ignore_stop_signals()
    return code


def request(line: CommandLine, nodes: NodeFlags, job: JobFlags) -> Request:
    """Returns what the flags ask for; the data set need not be readable here."""
    recipe = recipe_file.get(line.values["recipe"])
    num_examples, class_names = recipe.num_train_examples, tuple[str, ...]()
    multi_label = False
    data_dir = line.values["data_dir"]
    if data_dir and pathlib.Path(data_dir).is_dir():
        # It needs NumPy, and the records are rarely on a login node.
        from data_prep.records import manifest

        if record_set := manifest.find(data_dir):
            contents = record_set.manifest
            class_names, multi_label = contents.class_names, contents.multi_label
            if "train" in contents.splits:
                num_examples = contents.splits["train"].num_examples
                recipe = own.fitted(
                    recipe, num_examples, len(class_names), contents.median_side
                )
    own.require_fitted(recipe)
    return Request(
        flags=job,
        threads=line.of(JobSettings),
        recipe=recipe,
        recipe_flag=line.values["recipe"],
        overrides=command_line.overrides(line),
        passed_on=passed_on(line, job),
        num_train_examples=num_examples,
        class_names=class_names,
        multi_label=multi_label,
        eval_batch_size=line.values["eval_batch_size"],
        hosts_file=nodes.hosts,
    )


def passed_on(line: CommandLine, job: JobFlags) -> dict[str, str]:
    """Returns the words of the given flags that the training gets too."""
    of_planner = (*dataclasses.fields(NodeFlags), *dataclasses.fields(JobFlags))
    without = {field.name for field in of_planner} | _PLANNED
    if job.job == "eval":
        without |= _OF_EVALUATION
    words = {name: word for name, word in line.given.items() if name not in without}
    if words and job.job == "eval":
        raise UserError(
            "--job=eval plans an evaluation, which has no flags of a training; got"
            f" {', '.join(words.values())}."
        )
    return words


if __name__ == "__main__":
    sys.exit(program.run(main))
