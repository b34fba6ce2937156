"""Stand-ins for the programs that the pages of docs/ name, in tests of these pages.

    python page_programs.py NAME ARGUMENT ...

Each checks its arguments as the program does, exits with 1 or 2 if that would refuse
them, and then does here what it would do elsewhere: a batch file, a container or a
remote command runs on this machine. A training is either described (`--explain`, also
with the number of ranks of a large job), or takes two small steps, if PAGE_TRAINS is
set.
"""

import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REAL_PYTHON = os.environ.get("PAGE_PYTHON", sys.executable)
CLONE = Path(os.environ.get("PAGE_CLONE", "."))
SMALL = ("--model=resnet8", "--image_size=32", "--train_batch_size=6")
SMALL_STEPS = ("--train_steps=2", "--warmup_steps=1")
MAX_RANKS = 2  # More are only described.
SBATCH = {  # The values that sbatch takes.
    "cpus-per-task": r"\d+",
    "exclusive": "",
    "job-name": r".+",
    "mem": r"\d+[KMGT]?",
    "nodes": r"\d+",
    "ntasks-per-node": r"\d+",
    "open-mode": "append|truncate",
    "output": r".+",
    "partition": r"[\w-]+",
    "requeue": "",
    "signal": r"(B:)?\w+(@\d+)?",
    "time": r"\d+:\d\d:00",
}
RECIPE_SECTIONS = {"files", "post", "environment"}


class Parser(argparse.ArgumentParser):
    """Takes options up to the first word of a command, as launchers do."""

    def __init__(self, name: str, *options: str, command: bool = True) -> None:
        super().__init__(prog=name, allow_abbrev=False, add_help=False)
        for option in options:
            option, has_value, choices = option.partition("=")
            keywords = {} if has_value else {"action": "store_true"}
            if choices:
                keywords["choices"] = choices.split("|")
            self.add_argument(option, **keywords)
        if command:
            self.add_argument("command", nargs=argparse.REMAINDER)


def run(words: list[str], **variables: str) -> None:
    os.execvpe(words[0], words, {**os.environ, **variables})


def run_ranks(words: list[str], num_ranks: int) -> None:
    """Runs a command once for all the ranks of a job that is too large for here."""
    run(words, PAGE_RANKS=str(num_ranks), PMI_RANK="0")


def python(arguments: list[str]) -> None:
    program = next((Path(a).name for a in arguments if a.endswith(".py")), "")
    if "PAGE_RANKS" in os.environ:  # One process stands for all ranks.
        os.environ.pop("PMI_RANK")
    if program == "supervise.py":  # It looks for the steps of what it starts.
        os.environ["PAGE_TRAINS"] = "yes"
    is_described = {"--explain", "--list_recipes"} & {*arguments}
    if program == "resnet_main.py" and not is_described:
        if "PAGE_TRAINS" in os.environ and "PAGE_RANKS" not in os.environ:
            arguments += [*SMALL, *SMALL_STEPS]
        else:
            num_ranks = os.environ.get("PAGE_RANKS", "1")
            if num_ranks != "1":  # The recipe is for another set than the one here.
                other = ("--data_dir=", "--initial_weights=")
                arguments = [a for a in arguments if not a.startswith(other)]
            arguments += ["--explain", f"--num_ranks={num_ranks}"]
    elif program and Path(arguments[0]).parent.name == "eval":
        assert (CLONE / "eval" / program).exists(), program
        if "PAGE_TRAINS" not in os.environ:
            return
        if program == "benchmark.py":
            arguments += ["--model=resnet8", "--image_size=32", "--steps=1"]
            arguments = [re.sub("batch_size=64", "batch_size=4", a) for a in arguments]
    run([REAL_PYTHON, *arguments])


def mpirun(arguments: list[str]) -> None:
    """Hydra's; hosts other than this one are reached by the stand-in for ssh."""
    real = str(Path(REAL_PYTHON).with_name("mpirun"))
    parser = Parser("mpirun", "-np=", "-ppn=", "-f=", "-hosts=", "-iface=")
    given = parser.parse_args(arguments)
    num_ranks = int(given.np)
    per_node = int(given.ppn or num_ranks)
    if given.f:
        assert Path(given.f).read_text().split(), given.f
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
    if num_nodes and num_ranks != num_nodes * per_node:
        sys.exit(f"mpirun: {num_ranks} processes, {num_nodes} nodes x {per_node}")
    if num_ranks > MAX_RANKS or num_nodes:
        run_ranks(given.command, num_ranks)
    run([real, *arguments])


def srun(arguments: list[str]) -> None:
    options = ("--mpi=list|pmi2|pmix", "--nodes=", "--ntasks=", "--ntasks-per-node=")
    more = ("--cpu-bind=none", "--exclusive", "--nodelist=", "--distribution=")
    given = Parser("srun", *options, *more).parse_args(arguments)
    if given.mpi == "list":
        print("MPI plugin types are...\n\tnone\n\tpmi2")
        return
    num_tasks = int(given.ntasks)
    if num_tasks > MAX_RANKS or "SLURM_JOB_NUM_NODES" in os.environ:
        run_ranks(given.command, num_tasks)
    mpirun(["-np", str(num_tasks), *given.command])


def salloc(arguments: list[str]) -> None:
    given = Parser("salloc", "--nodes=", "--exclusive", "--mem=").parse_args(arguments)
    run(given.command)


def sbatch(arguments: list[str]) -> None:
    """Checks the directives of a batch file, and runs it."""
    path, *words = Parser("sbatch", "--hold").parse_args(arguments).command
    text = Path(path).read_text()
    if not text.startswith("#!"):
        sys.exit(f"sbatch: error: {path} is no batch script: it has no #! line")
    found = {}
    for line in re.findall(r"^#SBATCH (.*)$", text, re.M):
        name, _, value = line.removeprefix("--").partition("=")
        if name not in SBATCH or not re.fullmatch(SBATCH[name], value):
            sys.exit(f"sbatch: error: unrecognized option {line!r}")
        found[name] = value
    print("Submitted batch job 1", flush=True)
    run(
        ["bash", path, *words],
        SLURM_JOB_ID="1",
        SLURM_JOB_NUM_NODES=found["nodes"],
        SLURM_CPUS_PER_TASK=found["cpus-per-task"],
        SLURM_SUBMIT_DIR=os.getcwd(),
    )


def scontrol(arguments: list[str]) -> None:
    assert arguments == ["show", "job", "1"], arguments


def squeue(arguments: list[str]) -> None:
    Parser("squeue", "--me", command=False).parse_args(arguments)


def scancel(arguments: list[str]) -> None:
    assert Parser("scancel", "--name=", command=False).parse_args(arguments).name


def ssh(arguments: list[str]) -> None:
    """Runs the command here, for a host of the file `hosts`."""
    parser = argparse.ArgumentParser("ssh", add_help=False)
    parser.add_argument("-x", action="store_true")  # Hydra's: no X11.
    parser.add_argument("-o", choices=["BatchMode=yes"])
    parser.add_argument("host", choices=(CLONE / "hosts").read_text().split())
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    run(["sh", "-c", " ".join(given.command)])


def rsync(arguments: list[str]) -> None:
    """Copies files to a folder, or a file to one on a host, which is here as well."""
    parser = Parser("rsync", "-a", "--archive", command=False)
    parser.add_argument("--files-from", choices=["-"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target")
    given = parser.parse_args(arguments)
    host, _, path = given.target.rpartition(":")
    assert given.source.exists(), given.source
    assert not host or host in (CLONE / "hosts").read_text().split(), host
    assert path.startswith(str(CLONE.parent)), path
    assert Path(path).parent.is_dir(), path  # It creates the last folder only.
    for name in sys.stdin.read().splitlines() if given.files_from else ():
        (Path(path) / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(given.source / name, Path(path) / name)
    if given.source.is_file():
        shutil.copy(given.source, path)


def make(arguments: list[str]) -> None:
    """Lets make find what it would do; an archive is one of two small files."""
    words = [os.environ["PAGE_MAKE"], "--dry-run", *arguments]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    settings = dict(word.split("=", 1) for word in arguments if "=" in word)
    if arguments[0] == "bundle":
        name = settings.get("BUNDLE", "resnet-cpu.tar.gz")
        small = ["--transform=s,^,resnet-cpu/,", ".venv", "install", "resnet"]
        subprocess.run(["tar", "-chaf", name, *small], check=True, cwd=CLONE)
    elif arguments[0] == "wheels":
        (CLONE / "wheels").mkdir()
    elif "WHEELS" in settings:
        assert Path(settings["WHEELS"]).is_dir()


def docker(arguments: list[str]) -> None:
    if arguments[0] == "build":
        parser = Parser("docker build", "--file=", "--tag=", command=False)
        parser.add_argument("context", type=Path)
        given = parser.parse_args(arguments[1:])
        check_dockerfile(Path(given.file).read_text(), given.context)
        return
    parser = argparse.ArgumentParser("docker run", add_help=False)
    parser.add_argument("--rm", action="store_true")
    parser.add_argument("--ipc", choices=["host"])
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("image", choices=["resnet-cpu"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    assert arguments[0] == "run", arguments
    given = parser.parse_args(arguments[1:])
    run_inside(given.command, given.volume, CLONE)


def check_dockerfile(text: str, context: Path) -> None:
    """Checks the instructions of a recipe; what it copies and runs must be there."""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if not line or word == "#":
            continue
        assert word in ("FROM", "WORKDIR", "COPY", "RUN", "ENV"), line
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert glob.glob(str(context / source)), line
        if word == "RUN":
            assert os.access(context / rest, os.X_OK), line


def apptainer(arguments: list[str]) -> None:
    if arguments[0] == "build":
        image, recipe = arguments[1:]
        assert image.endswith(".sif"), image
        check_definition(Path(recipe).read_text())
        Path(image).touch()
        return
    assert arguments[0] == "exec", arguments
    given = Parser("apptainer exec", "--bind=").parse_args(arguments[1:])
    image, *command = given.command
    assert Path(image).exists(), image
    run_inside(command, [given.bind] if given.bind else [], Path.cwd())


def check_definition(text: str) -> None:
    """Checks a definition file: its header, its sections, and the files it copies."""
    header, *sections = re.split(
        r"^%", re.sub("^#.*\n", "", text, flags=re.M), flags=re.M
    )
    keys = dict(line.split(": ") for line in header.splitlines() if line)
    assert keys == {"Bootstrap": "docker", "From": "debian:12-slim"}, keys
    for section in sections:
        name, *lines = section.rstrip().splitlines()
        assert name in RECIPE_SECTIONS, name
        for line in lines if name == "files" else ():
            source, target = line.split()
            assert glob.glob(str(CLONE / source)), line
            assert target.endswith("/"), line  # Else a file would get this name.


def run_inside(command: list[str], volumes: list[str], folder: Path) -> None:
    """Runs a command of a container, whose folders are here under other names."""
    places = dict(reversed(volume.split(":")) for volume in volumes)
    for inside, outside in places.items():
        assert Path(outside).is_dir(), outside
        command = [word.replace(f"={inside}", f"={outside}") for word in command]
    os.chdir(folder)
    run([word.replace("/opt/resnet-cpu", str(CLONE)) for word in command])


PROGRAMS = {
    program.__name__: program
    for program in (
        *(python, mpirun, srun, salloc, sbatch, scontrol, squeue, scancel),
        *(ssh, rsync, make, docker, apptainer),
    )
}

if __name__ == "__main__":
    name, *words = sys.argv[1:]
    with open(os.environ["PAGE_LOG"], "a") as log:
        log.write(f"{shlex.join([name, *words])}\n")
    try:
        PROGRAMS[name](words)
    except (AssertionError, OSError, ValueError, KeyError) as error:
        print(f"{name}: {error!r}", file=sys.stderr)
        sys.exit(2)
