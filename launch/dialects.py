"""Launchers and schedulers: how each is spoken to, as one row of `DIALECTS`.

Options and lines are templates: `{name}` stands for one of the values of `_values`, and
a template with a value of None is left out. `resnet/hardware/launchers.py` has what the
ranks know of a launcher.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SIGNAL_SECONDS = 120  # Before the time limit; a save takes seconds.
# Hydra (MPICH, Intel MPI) binds nothing unless it is asked to: each rank binds itself.
_HYDRA = ("-f {hosts_file}", "-np {processes}", "-ppn {ppn}")
# Intel MPI's own pinning divides the node in another way where cores or ranks are
# uneven. Scripts export the variable (launch/jobs/site.sh).
_UNPINNED = ("-genv I_MPI_PIN off", *_HYDRA)
# Characters that no program prints, since Hydra labels each piece of a line, too.
_HYDRA_LABEL_OPTIONS = ("-prepend-pattern", "\x1e%r %h\x1f")
_HYDRA_LABEL = "\x1e(?P<rank>\\d+) (?P<host>[^\x1f]*)\x1f"
# The function of launch/jobs/site.sh also offers srun.
_SET_LAUNCHER = "set_launcher {processes} {in_turn}{maybe_cyclic}"
# Without `--bind-to none` Open MPI pins each of one or two ranks to a single core.
_OPEN_MPI = "-np {processes} --map-by {mapping} --bind-to none"
_HERE = """$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"""
_REQUEUED = ("#SBATCH --requeue", "#SBATCH --open-mode=append")


@dataclass(frozen=True)
class JobShape:
    """The processes of a job."""

    num_nodes: int
    num_processes: int
    processes_per_node: int  # The largest number of them.
    cpus_per_node: int  # Logical processors that they use on a node.
    goes_round: bool = False  # Whether successive ranks are on different nodes.
    hosts_file: str = ""  # A file of host names; empty if the scheduler knows them.
    srun_mpi: str = ""  # By which srun starts MPI programs; empty for the site's.

    @property
    def cpus_per_process(self) -> int:
        """The number of logical processors that Slurm gives each process."""
        return max(self.cpus_per_node // self.processes_per_node, 1)


@dataclass(frozen=True)
class BatchSettings:
    """What a scheduler is asked for beside the processes."""

    name: str
    hours: int  # With the minutes the time limit.
    minutes: int
    partition: str = ""  # Or queue; empty for the site's default.
    is_resumed: bool = True  # Whether it saves before its time limit, and resumes.


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one launcher or scheduler is spoken to, by default MPICH's Hydra."""

    title: str
    program: str = "mpirun"  # That starts the ranks, with the options about them.
    options: Sequence[str]
    host_command: Sequence[str] = ("mpirun -hosts {host} -np 1",)  # One program there.
    shell_on_host: bool = False  # Whether a shell there parses what it has joined.
    unset_on_host: Sequence[str] = ()  # Variables that `host_command` must not see.
    # A line of its hosts file: what it may be, and what says the number of ranks. For
    # Hydra, a comment must be a line of its own.
    host_form: str = r"[^\s:#]+(:\d+)?(\s+(binding|user)=\S+)*"
    slots: str = ":{}"
    # Names a job's file with a line for each process of a node.
    hosts_variable: str = ""
    # That put a label before each line of a rank, and what matches it: the group `rank`
    # and, if the launcher names it, `host`.
    label_options: Sequence[str] = _HYDRA_LABEL_OPTIONS
    label: str = _HYDRA_LABEL
    header: Sequence[str] = ()  # Of a batch file; none for launchers alone.
    header_if_resumed: Sequence[str] = ()
    header_otherwise: Sequence[str] = ()
    # Lines of a script that enter the folder in which it was submitted, that set
    # REPOSITORY to its clone, that set the array `launcher`, and that ask a run to save
    # before its time limit where the scheduler doesn't.
    enter_folder: Sequence[str] = ()
    find_clone: Sequence[str] = (f"REPOSITORY=${{REPOSITORY:-{_HERE}}}",)
    script_launcher: Sequence[str] = (_SET_LAUNCHER,)
    before_limit: Sequence[str] = ()
    # The function of launch/jobs/requeue.sh that runs a job that resumes; empty if the
    # script becomes the launcher.
    run: str = ""
    starts_any: bool = False  # Whether it also has to start a single process.
    rounds_cpus: bool = False  # Whether processes get the same number of processors.

    def command(self, shape: JobShape, options: Sequence[str] = ()) -> list[str]:
        """Returns the words in front of the program, with further options first."""
        return [self.program, *options, *_words(self.options, _values(shape))]

    def on_host(self, host: str, words: Sequence[str]) -> list[str]:
        """Returns the command that runs a program once, on one host."""
        if self.shell_on_host:
            words = [shlex.join(words)]
        return [*_words(self.host_command, {"host": host}), *words]

    def batch_header(self, shape: JobShape, batch: BatchSettings) -> list[str]:
        """Returns the lines of a batch file for the scheduler."""
        more = self.header_if_resumed if batch.is_resumed else self.header_otherwise
        return _filled([*self.header, *more], _values(shape) | _batch_values(batch))

    def launcher_lines(self, shape: JobShape) -> list[str]:
        """Returns the lines of a script that set the array `launcher`."""
        return _filled(self.script_launcher, _values(shape))

    def limit_lines(self, batch: BatchSettings) -> list[str]:
        """Returns the lines of a script that ask a run to save before its limit."""
        lines = self.before_limit if batch.is_resumed else ()
        return _filled(lines, _batch_values(batch))


Values = dict[str, str | None]


def _values(shape: JobShape) -> Values:
    per_node = shape.processes_per_node
    in_turn = "1" if shape.goes_round else str(per_node)
    values: Values = {
        "nodes": str(shape.num_nodes),
        "processes": str(shape.num_processes),
        "per_node": str(per_node),
        "slots": str(shape.num_nodes * per_node),
        "cpus_per_node": str(shape.cpus_per_node),
        "cpus_per_process": str(shape.cpus_per_process),
        "in_turn": in_turn,  # Successive ranks on a node.
        "ppn": in_turn if shape.num_nodes > 1 else None,
        "mapping": "node" if shape.goes_round else f"ppr:{per_node}:node",
        "cyclic": "cyclic" if shape.goes_round else None,
        "maybe_cyclic": " cyclic" if shape.goes_round else "",
        "hosts_file": shape.hosts_file or None,
        "srun_mpi": shape.srun_mpi or None,
    }
    return values | {"hydra": shlex.join(_words(_HYDRA, values))}


def _batch_values(batch: BatchSettings) -> Values:
    minutes = 60 * batch.hours + batch.minutes
    return {
        "name": batch.name,
        "hours": f"{batch.hours:02d}",
        "minutes": f"{batch.minutes:02d}",
        "partition": batch.partition or None,
        "seconds_to_signal": str(max(60 * minutes - _SIGNAL_SECONDS, 1)),
    }


def _filled(templates: Iterable[str], values: Values) -> list[str]:
    texts = []
    for template in templates:
        names = re.findall(r"{(\w+)}", template)
        used = {name: values[name] for name in names if name in values}
        if None not in used.values():
            for name, value in used.items():
                template = template.replace(f"{{{name}}}", str(value))
            texts.append(template)
    return texts


def _words(templates: Iterable[str], values: Values) -> list[str]:
    """Returns the words of options; a value is one word, whatever is in it."""
    return [
        word
        for template in templates
        if _filled([template], values)
        for word in _filled(template.split(" "), values)
    ]


DIALECTS: dict[str, Dialect] = {
    "mpich": Dialect(title="MPICH", options=_HYDRA),
    "intelmpi": Dialect(
        title="Intel MPI",
        # Its mpirun is a script, which a signal would end instead of the ranks.
        program="mpiexec.hydra",
        options=_UNPINNED,
        host_command=("mpiexec.hydra -hosts {host} -np 1",),
        label_options=("-prepend-rank",),
        label=r"^\[(?P<rank>\d+)\] ",
    ),
    "openmpi": Dialect(
        title="Open MPI",
        # On other hosts, `python` is looked up in the PATH of this one, which has the
        # environment's programs, rather than in that of ssh.
        options=("--hostfile {hosts_file}", _OPEN_MPI, "-x PATH"),
        host_command=("mpirun --host {host} -np 1 --bind-to none",),
        host_form=r"[^\s:#]+(\s+[\w-]+\s*=\s*\S+)*\s*(#.*)?",
        slots=" slots={}",
        label_options=("--tag-output",),
        # Not only where a line begins: it labels each piece, as Hydra does.
        # Version 5 puts a space behind it.
        label=r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?",
        script_launcher=(  # The function sets `passed_on`: PATH and other variables.
            "set_passed_on",
            'launcher=(mpirun ${HOSTFILE:+--hostfile "$HOSTFILE"} '
            f'{_OPEN_MPI} "${{passed_on[@]}}")',
        ),
    ),
    "slurm": Dialect(
        title="Slurm",
        program="srun",
        # Slurm would divide the cores of a node among its tasks in an order of its own,
        # so the ranks do it.
        options=(
            "--mpi={srun_mpi}",
            "--nodes={nodes}",
            "--ntasks={processes}",
            "--ntasks-per-node={per_node}",
            "--cpus-per-task={cpus_per_process}",
            "--cpu-bind=none",
            "--distribution={cyclic}",
        ),
        host_command=("srun --nodelist={host} --nodes=1 --ntasks=1 --cpu-bind=none",),
        # With -c of an allocation, a single task would see the processors of one rank.
        unset_on_host=(
            "SLURM_CPUS_PER_TASK",
            "SLURM_TRES_PER_TASK",
            "SRUN_CPUS_PER_TASK",
        ),
        label_options=("--label",),
        label=r"^ *(?P<rank>\d+): ",
        header=(
            "#SBATCH --partition={partition}",
            "#SBATCH --time={hours}:{minutes}:00",
            "#SBATCH --job-name={name}",
            "#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node={per_node}",
            "#SBATCH --cpus-per-task={cpus_per_process}",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",  # Else the exclusive node has its default memory.
            "#SBATCH --output=%x-%j.log",
        ),
        header_if_resumed=(
            f"#SBATCH --signal=B:USR1@{_SIGNAL_SECONDS}",
            "# Before the time limit: saved, requeued, and the log appended.",
            *_REQUEUED,
        ),
        header_otherwise=(
            "# Started over if its node fails, since it has nothing to save.",
            *_REQUEUED,
        ),
        find_clone=(
            "# Slurm runs a copy of this file, whose clone is where sbatch found it.",
            'file=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null |',
            r"  sed -n 's/^ *Command=\(.*\.slurm\).*/\1/p') || true",
            "[[ $file == */launch/jobs/*.slurm ]] ||"
            " file=${SLURM_SUBMIT_DIR:-.}/launch/jobs/",
            "REPOSITORY=${REPOSITORY:-${file%/launch/jobs/*}}",
        ),
        run="run_and_requeue",
        script_launcher=(
            "# LAUNCHER=srun starts the ranks by srun instead of mpirun.",
            "export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-{srun_mpi}}",
            _SET_LAUNCHER,
        ),
        starts_any=True,
        rounds_cpus=True,
    ),
    "lsf": Dialect(
        title="LSF",
        # Hydra takes the hosts from LSF, and starts its helper processes by blaunch.
        options=("-rmk lsf", "-launcher lsf", *_UNPINNED),
        host_command=("blaunch {host}",),
        hosts_variable="LSB_DJOB_HOSTFILE",
        header=(
            "#BSUB -q {partition}",
            "#BSUB -W {hours}:{minutes}",
            "#BSUB -J {name}",
            "#BSUB -n {slots}",
            '#BSUB -R "span[ptile={per_node}]"',
            "#BSUB -x",
            "#BSUB -o %J.log",
            "#BSUB -r",
        ),
        header_if_resumed=(
            f"#BSUB -wa USR1 -wt {_SIGNAL_SECONDS // 60}",
            '#BSUB -Q "75"',  # The exit code of a run that was preempted and has saved.
        ),
        find_clone=("REPOSITORY=${REPOSITORY:-${LS_SUBCWD:-.}}",),
        script_launcher=("launcher=(mpirun -rmk lsf -launcher lsf {hydra})",),
    ),
    "pbs": Dialect(
        title="PBS",
        options=("-rmk pbs", *_UNPINNED),  # Hydra takes the hosts from PBS_NODEFILE.
        host_command=("ssh -o BatchMode=yes {host}",),
        hosts_variable="PBS_NODEFILE",
        shell_on_host=True,
        header=(
            "#PBS -q {partition}",
            "#PBS -l walltime={hours}:{minutes}:00",
            "#PBS -N {name}",
            "#PBS -l select={nodes}:ncpus={cpus_per_node}:mpiprocs={per_node}",
            "#PBS -l place=scatter:excl",
            "#PBS -j oe",
            "#PBS -r y",
        ),
        # PBS starts a job in the home folder, where relative paths mean other folders.
        enter_folder=('cd "${PBS_O_WORKDIR:-.}"',),
        find_clone=("REPOSITORY=${REPOSITORY:-${PBS_O_WORKDIR:-.}}",),
        script_launcher=("launcher=(mpirun -rmk pbs {hydra})",),
        # At the limit itself, PBS leaves a job only seconds. The shell becomes mpirun,
        # which has the same process id, and forwards the signal to all ranks.
        before_limit=(
            "# PBS sends no signal ahead of its limit. The ranks save, and exit with"
            " 75.",
            "# SECONDS has the time since the job began, such as that of the staging.",
            "left=$((SECONDS < {seconds_to_signal} ? {seconds_to_signal} - SECONDS :"
            " 0))",
            '(sleep "$left" && kill -s USR1 $$) >/dev/null 2>&1 &',
        ),
    ),
}
