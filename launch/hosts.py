"""The hosts of a job: their names, and what `plan.py --print=host` says on each."""

import dataclasses
import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from launch import topology
from launch.commands import StopRequests
from launch.dialects import DIALECTS, Dialect
from launch.topology import Topology
from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.hardware import host as host_of_process
from resnet.runtime import versions

_Answer = TypeVar("_Answer")

SECONDS = 60.0  # Timeout of a host; ssh's own timeout is minutes.
_MOST_AT_ONCE = 32
_PLANNER = Path(__file__).with_name("plan.py")


@dataclass(frozen=True)
class HostReport:
    """What a host says of itself."""

    topology: Topology
    boot_id: str  # What two hosts share only if they are one machine.
    versions: dict[str, str]  # Of the software, and digests, by their descriptions.
    data: str  # The SHA-256 of the data set's manifest; empty without a data set.
    data_problem: str  # Why the data set can't be read; empty if it can.


@dataclass(frozen=True)
class Question(Generic[_Answer]):
    """A program that each host is to run, and whose last line is its answer."""

    program: Sequence[str]
    kind: type[_Answer]  # A dataclass, of which the line is the JSON.
    seconds: float  # Timeout.


@dataclass(frozen=True)
class Host:
    """A host of a hosts file."""

    name: str
    slots: int = 0  # The number of ranks that its line allows; 0 without one.
    more: str = ""  # What else its line says.

    def line(self, dialect: Dialect = DIALECTS["mpich"]) -> str:
        """Returns the line of a host for a launcher; UserError if it says more."""
        if self.more:
            raise UserError(
                f"only a name and a number of ranks can be told of {self.name} here;"
                f" leave out {self.more!r}."
            )
        return self.name + (dialect.slots.format(self.slots) if self.slots else "")


def parse_line(line: str) -> Host | None:
    """Returns the host of a line, or of an item of -hosts; None without one.

    Raises UserError for what is none in any launcher's form, such as an IPv6 address.
    """
    text = line.partition("#")[0].strip()
    form = r"(\w[\w.@-]*)(?::([1-9]\d*)|\s+slots=([1-9]\d*))?(?:\s+(?!slots=)(.*))?"
    match = re.fullmatch(form, text, re.ASCII)
    if match:
        return Host(match[1], int(match[2] or match[3] or 0), match[4] or "")
    if not text:
        return None
    raise UserError(
        "a host must be a name or an IPv4 address, as `name`, `name:N` or `name"
        f" slots=N` for N ranks; got {text!r}. Give a host with an IPv6 address a name."
    )


def read_file(path: str, dialect: Dialect | None = None) -> list[Host]:
    """Returns the hosts in a file, one of each line.

    Raises UserError if it can't be read, names none, or has a line that the launcher
    can't read, if one is named.
    """
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise UserError(
            f"the file of hosts can't be read; {path}: {error.strerror}. Write the name"
            " of a host on each of its lines."
        ) from error
    hosts = []
    for number, line in enumerate(lines, 1):
        try:
            if host := parse_line(line):
                hosts.append(host)
                if dialect and not re.fullmatch(dialect.host_form, line.strip()):
                    raise UserError(
                        f"{dialect.title} can't read {line.strip()!r}; write"
                        f" {host.line(dialect)!r}."
                    )
        except UserError as error:
            raise UserError(f"line {number} of {path}: {error}") from error
    if not hosts:
        raise UserError(f"{path} must name a host on each line; it names none.")
    return hosts


def of_job(num_nodes: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the hosts of the scheduler's job; none if it is this machine."""
    hosts = _of_scheduler(environ)
    if not hosts and num_nodes == 1:
        return []
    if len(hosts) != num_nodes:
        raise UserError(
            f"to check nodes ({num_nodes}), their names must be known; the scheduler's"
            f" job has {len(hosts) or 'none'}. Name them with --hosts=FILE."
        )
    return hosts


def _of_scheduler(environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts of the job in which this program runs; none outside a job."""
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        words = ["scontrol", "show", "hostnames", nodes]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"the hosts of this job, {nodes}, must be listed by `scontrol`: {error}"
            ) from error
        return done.stdout.split()
    for dialect in DIALECTS.values():
        if path := environ.get(dialect.hosts_variable):
            # The first line of LSF's is the host of the batch file, if it has no rank.
            return list(dict.fromkeys(host.name for host in read_file(path)))
    return []


def report_of_this(manifest_dir: str, root: Path = Path("/")) -> HostReport:
    """Returns the report of this machine, with a folder that stands for `/`."""
    data, problem = _data(manifest_dir) if manifest_dir else ("", "")
    return HostReport(
        topology=topology.probe(root),
        boot_id=host_of_process.boot_id(root),
        versions=versions.describe(),
        data=data,
        data_problem=problem,
    )


def _data(folder: str) -> tuple[str, str]:
    """Returns the digest of the manifest in a folder, and why there is none."""
    try:
        from data_prep.records import manifest  # It needs NumPy.

        record_set = manifest.find(folder)
    except (UserError, ImportError) as error:
        return "", str(error)
    if record_set is None:
        return "", f"{folder} has no manifest"
    contents = dataclasses.replace(record_set.manifest, source={})  # It may differ.
    return hashlib.sha256(repr(contents).encode()).hexdigest(), ""


def reports(
    names: Sequence[str], dialect: Dialect, manifest_dir: str, requests: StopRequests
) -> tuple[dict[str, HostReport], dict[str, str]]:
    """Returns the report of each host that answers, and a sentence for each other one.

    Without names, it is that of this machine. UserError if there is no such launcher.
    """
    if not names:
        return {platform.node(): report_of_this(manifest_dir)}, {}
    program = [sys.executable, str(_PLANNER), "--probe", "--print=host"]
    if manifest_dir:  # Some launchers, such as ssh, start in the home folder.
        program.append(f"--data_dir={os.path.abspath(manifest_dir)}")
    return ask(names, dialect, Question(program, HostReport, SECONDS), requests)


def ask(
    names: Sequence[str],
    dialect: Dialect,
    question: Question[_Answer],
    requests: StopRequests,
) -> tuple[dict[str, _Answer], dict[str, str]]:
    """Returns the answer of each host, and a sentence for each that gives none.

    Without names, this machine is asked. UserError if there is no such launcher.
    """
    asked = list(names) or [""]
    with ThreadPoolExecutor(max_workers=min(len(asked), _MOST_AT_ONCE)) as threads:
        answers = list(
            threads.map(lambda name: _ask(name, dialect, question, requests), asked)
        )
    pairs = [
        (name or platform.node(), of) for name, of in zip(asked, answers, strict=True)
    ]
    return (
        {name: answer for name, answer in pairs if not isinstance(answer, str)},
        {name: answer for name, answer in pairs if isinstance(answer, str)},
    )


def _ask(
    name: str, dialect: Dialect, question: Question[_Answer], requests: StopRequests
) -> _Answer | str:
    """Returns the answer of a host, or a sentence about why there is none."""
    host, program = name or platform.node(), list(question.program)
    words = dialect.on_host(name, program) if name else program
    if requests.seen:  # Before its turn has come.
        return f"{host} was not asked, since this program was stopped."
    try:
        unset = dialect.unset_on_host if name else ()
        done = requests.run_captured(words, question.seconds, unset)
    except UserError as error:
        reason = getattr(error.__cause__, "strerror", error)
        raise UserError(
            f"{dialect.title} needs the program {words[0]}, which can't be run:"
            f" {reason}. Load its module, or choose another --launcher."
        ) from error
    if done.timed_out:
        return (
            f"{host} must answer within {question.seconds:.0f} s; it hasn't. Leave it"
            " out."
        )
    if done.exit_code:
        launcher = shlex.join(words[: -len(program)])
        return (
            f"{host} can't be probed by `{launcher} ...`, which ended with exit code"
            f" {done.exit_code}: {done.reason}"
        )
    answer = done.stdout.strip()
    try:
        last = answer.rpartition("\n")[2]
        return json_file.parse(last, question.kind, "its answer", "a report")
    except UserError:
        return (
            f"{host} must answer with a report of itself; it has answered"
            f" {answer[-80:]!r}. Is this clone at the same path there?"
        )
