"""The recipes of containers copy what a set-up needs, and both the same."""

import re
import subprocess
from pathlib import Path

from tests.sources import ROOT

RECIPES = ROOT / "install/container"


def copied_by_docker() -> set[str]:
    lines = re.findall(r"^COPY (.*) \S+$", (RECIPES / "Dockerfile").read_text(), re.M)
    return {source for line in lines for source in line.split()}


def copied_by_apptainer() -> set[str]:
    text = (RECIPES / "resnet-cpu.def").read_text()
    return set(re.findall(r"^    (\S+) /opt/resnet-cpu/$", text, re.M))


def test_both_copy_the_same_files():
    assert copied_by_docker() == copied_by_apptainer()


def test_what_a_set_up_reads_is_copied():
    sources = copied_by_docker()
    files = {path.name for source in sources for path in ROOT.glob(source)}
    needed = {path.name for path in ROOT.glob("requirements*")}
    assert needed < files
    assert {"Makefile", "setup.py", "pyproject.toml", "README.md", "LICENSE"} < files
    assert {"data_prep", "eval", "install", "launch", "resnet"} < files


def test_both_run_the_same_script():
    script = "/opt/resnet-cpu/install/container/build.sh"
    assert f"\n%post\n    {script}\n" in (RECIPES / "resnet-cpu.def").read_text()
    docker = (RECIPES / "Dockerfile").read_text()
    assert "\nWORKDIR /opt/resnet-cpu\n" in docker
    assert "\nRUN install/container/build.sh\n" in docker
    words = ["bash", "-n", str(RECIPES / "build.sh")]
    subprocess.run(words, check=True)


def test_the_programs_of_the_environment_come_first_in_both():
    path = "PATH=/opt/resnet-cpu/.venv/bin:$PATH"
    assert f"\nENV {path}\n" in (RECIPES / "Dockerfile").read_text()
    text = Path(RECIPES, "resnet-cpu.def").read_text()
    assert f"\n%environment\n    export {path}\n" in text
