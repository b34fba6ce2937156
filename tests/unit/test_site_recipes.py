"""The recipes of EasyBuild and Spack name what the set-up takes (no tool is needed)."""

import re
import runpy
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import resnet.base
from tests.sources import ROOT

INSTALL = (ROOT / "install/install.sh").read_text()
VARIABLES = {"SELF_CHECK", "PYTHON", "MPICXX"}


class Recorded(ModuleType):
    """A module of Spack whose functions record what they are called with."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **_: self.calls.append((name, arguments))


@pytest.fixture
def spack(monkeypatch: pytest.MonkeyPatch) -> tuple[type, Recorded]:
    """Returns the class of the Spack package, and the functions that it calls."""
    functions = Recorded("spack.package")
    generic = ModuleType("spack_repo.builtin.build_systems.generic")
    generic.Package = object
    parts = generic.__name__.split(".")
    for number in range(1, len(parts)):
        name = ".".join(parts[:number])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, generic.__name__, generic)
    monkeypatch.setitem(sys.modules, "spack", ModuleType("spack"))
    monkeypatch.setitem(sys.modules, functions.__name__, functions)
    path = ROOT / "install/spack/packages/resnet_cpu/package.py"
    return runpy.run_path(str(path))["ResnetCpu"], functions


def easybuild() -> dict[str, Any]:
    (path,) = (ROOT / "install/easybuild").glob("*.eb")
    recipe: dict[str, Any] = {"SOURCE_TAR_GZ": "%(name)s-%(version)s.tar.gz"}
    exec(path.read_text(), recipe)
    toolchain = recipe["toolchain"]
    parts = (recipe["name"], recipe["version"], toolchain["name"], toolchain["version"])
    assert path.stem == "-".join(parts)
    return recipe


def python_range() -> tuple[tuple[int, ...], ...]:
    """Returns the oldest and the newest version of Python that the set-up takes."""
    words = re.search(
        r"\((\d+), (\d+)\) <= sys.version_info\[:2\] <= \((\d+), (\d+)\)", INSTALL
    )
    numbers = tuple(map(int, words.groups()))
    return numbers[:2], numbers[2:]


def test_easybuild_sets_the_version_of_the_project_up():
    recipe = easybuild()
    assert recipe["version"] == resnet.base.VERSION
    (version,) = (part[1] for part in recipe["dependencies"] if part[0] == "Python")
    oldest, newest = python_range()
    assert oldest <= tuple(map(int, version.split(".")))[:2] <= newest
    command = recipe["install_cmds"][-1]
    assert set(re.findall(r"(\w+)=", command)) == VARIABLES
    assert command.split()[:4] == ["make", "-C", "%(installdir)s", "venv"]


def test_spack_sets_the_version_of_the_project_up(spack):
    package, functions = spack
    declared = [arguments[0] for name, arguments in functions.calls]
    oldest, newest = (".".join(map(str, version)) for version in python_range())
    assert {"mpi", "gmake", "cxx", f"python@{oldest}:{newest}"} <= set(declared)
    assert resnet.base.VERSION in declared
    words: list[str] = []
    functions.which = lambda *_, **__: lambda *arguments: words.extend(arguments)
    package.install.__globals__["which"] = functions.which
    mpi = type("Mpi", (), {"mpicxx": "/mpi/bin/mpicxx"})
    command = type("Command", (), {"path": "/python/bin/python3"})
    python = type("Python", (), {"command": command})
    package().install({"mpi": mpi, "python": python}, "/prefix")
    assert words[:3] == ["-C", "/prefix", "venv"]
    settings = dict(word.split("=") for word in words[3:])
    assert settings.keys() == VARIABLES
    assert settings["MPICXX"] == "/mpi/bin/mpicxx"


def test_the_set_up_reads_the_variables_of_the_recipes():
    assert all(re.search(rf"^#   {name} ", INSTALL, re.M) for name in VARIABLES)


def test_a_step_that_ends_at_once_runs_no_trap_of_the_setup(tmp_path):
    """Its ticker, which has just begun, is ended with it."""
    (function,) = re.findall(r"^step\(\) \{\n.*?^\}\n", INSTALL, re.M | re.S)
    program = f"""
log={tmp_path}/log ticks=0
{function}
trap 'echo trapped' EXIT
for _ in {{1..40}}; do step what true; done
echo ended
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.stdout == "ended\ntrapped\n"
