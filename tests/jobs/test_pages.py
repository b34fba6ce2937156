"""The commands of the pages for each kind of user run as they stand there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_set
from tests.jobs import page_programs
from tests.made_once import made_once

pytestmark = pytest.mark.multiprocess

REPOSITORY = Path(__file__).resolve().parents[2]
SLOW_PAGES = ("server", "hosts", "offline")  # That their flags exist is a unit test.
PAGES = ("laptop", "slurm", "container", *SLOW_PAGES)
FOLDERS = ("data_prep", "docs", "eval", "install", "launch", "resnet")
HOSTS = "node1\nnode2\n"  # The file that the page about hosts shows.
STUB = """#!/bin/sh
exec {python} -S -E {programs} "${{0##*/}}" "$@"
"""


def commands(page: str) -> list[str]:
    """Returns the indented lines of a page, each of which is a command."""
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.findall(r"^ {4,}(\S.*)$", text, re.M)


class Site:
    """A clone with stand-ins for all programs, and the folders of the pages."""

    def __init__(self, folder: Path, records: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.clone = folder / "clone"
        programs = self.clone / ".venv/bin"
        programs.mkdir(parents=True)
        for name in page_programs.PROGRAMS:
            program = programs / name
            values = {"python": sys.executable, "programs": page_programs.__file__}
            program.write_text(STUB.format(**values))
            program.chmod(0o755)
        (programs / "activate").touch()
        for name in FOLDERS:
            (self.clone / name).symlink_to(REPOSITORY / name)
        for path in (REPOSITORY / "Makefile", *REPOSITORY.glob("*.txt")):
            (self.clone / path.name).symlink_to(path)
        for path in (*REPOSITORY.glob("*.in"), *REPOSITORY.glob("*.*")):
            if path.is_file() and not (self.clone / path.name).exists():
                (self.clone / path.name).symlink_to(path)
        (self.clone / "LICENSE").symlink_to(REPOSITORY / "LICENSE")
        (self.clone / "hosts").write_text(HOSTS)
        for name in ("scratch", "shared", "project", "MODEL", "local"):
            (folder / name).mkdir()
        (folder / "shared/records").symlink_to(records)
        (folder / "RECORDS").symlink_to(records)
        for name in ("RECORDS", "MODEL"):  # The container's are below the clone.
            (self.clone / name).symlink_to(folder / name)

    def run(self, line: str, trains: bool) -> subprocess.CompletedProcess[str]:
        """Runs a line of a page in bash, in the clone."""
        for name in ("scratch", "shared", "project"):
            line = re.sub(rf"(?<![\w.])/{name}\b", f"{self.folder}/{name}", line)
        for name in ("RECORDS", "MODEL"):
            line = re.sub(rf"(?<!/)\b{name}\b(?!:/)", f"{self.folder}/{name}", line)
        environment = {
            "PATH": f"{self.clone}/.venv/bin:{os.environ['PATH']}",
            "HOME": os.environ["HOME"],
            "PAGE_CLONE": str(self.clone),
            "PAGE_LOG": str(self.log),
            "PAGE_MAKE": str(shutil.which("make")),
            "PAGE_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            "REPOSITORY": str(self.clone),
            "LOCAL_DIR": str(self.folder / "local"),
            **({"PAGE_TRAINS": "yes"} if trains else {}),
        }
        if "launch/jobs/" in line:  # A ready script, whose site is this one.
            environment["OUTPUT_DIR"] = str(self.folder / "project")
            environment["DATA_DIR"] = str(self.folder / "RECORDS")
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.clone,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=500,
        )


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    return made_once(tmp_path_factory, "digits", tiny_set.make_digits) / "records"


@pytest.fixture
def site(tmp_path, digits) -> Site:
    return Site(tmp_path, digits)


def run_all(site: Site, page: str, trains: bool) -> list[str]:
    """Runs all commands of a page; returns the first word of each."""
    lines = commands(page)
    if page == "offline":  # Its archive is then on the shared disk.
        site.run("make bundle && mv resnet-cpu.tar.gz /shared/", trains)
    for line in lines:
        done = site.run(line, trains)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return [shlex.split(line)[0] for line in lines]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW_PAGES))
        for page in PAGES
    ],
)
def test_the_commands_of_a_page_run(site, page):
    """Trainings are only described, with the ranks of the real job."""
    assert run_all(site, page, trains=False)
    called = site.log.read_text()
    if page == "slurm":
        assert "--explain" not in called  # The stand-ins add it.
        assert "mpirun -np 512 -ppn 2 python" in called
        assert "srun --ntasks=8" in called or "srun --ntasks=4" in called
    if page == "offline":
        (unpacked,) = (site.folder / "local").iterdir()
        assert f"python {unpacked}/resnet-cpu/resnet/resnet_main.py" in called
    if page == "hosts":
        assert re.search(r"^ssh -x node2 .*hydra_pmi_proxy", called, re.M)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_the_trainings_of_a_page_train(site, page):
    run_all(site, page, trains=True)
    metrics = [*site.folder.rglob("metrics.jsonl")]
    assert metrics or page in ("slurm", "offline")


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_is_left_out_which_the_readme_links(page):
    """Blocks that `commands` leaves out show files, and there is no other kind."""
    assert f"](docs/{page}.md)" in (REPOSITORY / "README.md").read_text()
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    assert "~~~" not in text
    assert "\t" not in text
    for block in re.findall(r"^ *```.*\n((?:.*\n)*?) *```", text, re.M):
        assert block == HOSTS
