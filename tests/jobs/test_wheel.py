"""What pip builds from a clone: a wheel with the compiled ops, or none."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import resnet
from tests import console_scripts
from tests.processes import completed

ROOT = Path(__file__).resolve().parents[2]
# Starts each program in a process of its own, which has what all import already.
RUN_ALL = """
import os, sys
import absl.app, numpy
for program in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        module, name = program.split(":")
        sys.argv = [program, "--version"]
        getattr(__import__(module, fromlist=[name]), name)()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"{program} has ended with {code}")
"""
WITHOUT_TENSORFLOW = """
import importlib.util as util, runpy, sys
find_spec = util.find_spec
util.find_spec = lambda name: None if name == "tensorflow" else find_spec(name)
sys.argv = ["setup.py", *sys.argv[1:]]
runpy.run_path("setup.py", run_name="__main__")
"""


def copy_project(folder: Path) -> None:
    """Makes a copy of the project whose ops are built at once."""
    no_library = shutil.ignore_patterns("libresnet_*", "__pycache__")
    for name in ("data_prep", "eval", "launch", "resnet"):
        shutil.copytree(ROOT / name, folder / name, ignore=no_library)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("", "-export", "-parquet"):
        shutil.copy(ROOT / f"requirements{name}.in", folder)
    (folder / "install").mkdir()
    script = 'cd "$(dirname "$0")/../resnet/native"; echo "$1" | tee libresnet_{}.so'
    (folder / "install/build_native.sh").write_text(
        script.format("ops") + " >libresnet_ops.key"
    )
    (folder / "install/build_ports.sh").write_text(script.format("ports"))
    with zipfile.ZipFile(folder / "horovod.whl", "w") as horovod:
        horovod.writestr("horovod/__init__.py", "__version__ = '0.28.1'")
        horovod.writestr("horovod-0.28.1.dist-info/licenses/LICENSE", "Apache")
        horovod.writestr("horovod-0.28.1.dist-info/METADATA", "")
    script = f'echo compiling; echo "{folder}/horovod.whl"'
    (folder / "install/build_horovod.sh").write_text(script)


def build(clone: Path, *program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *program, "--quiet", "bdist_wheel", "--dist-dir=out"]
    return completed(words, cwd=clone)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The contents of a wheel, unpacked as pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_project(folder / "clone")
    done = build(folder / "clone", "setup.py")
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "clone" / "out").iterdir()
    assert file.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    shutil.unpack_archive(file, folder / "installed", "zip")
    return folder / "installed"


def test_a_wheel_holds_what_is_needed_and_no_packages_of_common_names(wheel):
    for name in ("ops.so", "ops.key", "ports.so"):
        library = wheel / f"resnet/native/libresnet_{name}"
        assert library.read_text() == f"{sys.prefix}\n"
    assert (wheel / "horovod/LICENSE").read_text() == "Apache"
    assert list(wheel.rglob("LICENSE"))
    page = wheel / "resnet/report"
    assert all((page / f"page.{suffix}").exists() for suffix in ("html", "js"))
    (metadata,) = wheel.glob(f"resnet_cpu-{resnet.__version__}.dist-info")
    found = {path.name for path in wheel.iterdir()} - {metadata.name}
    assert found == {"data_prep", "horovod", "resnet", "resnet_cpu"}
    packages = (metadata / "top_level.txt").read_text().split()
    assert packages == ["data_prep", "resnet"]
    for folder in ("eval", "launch"):
        programs = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        programs = {path for path in programs if "lab" not in path.parts}
        copies = (wheel / "resnet_cpu" / folder).rglob("*")
        files = {path.relative_to(wheel / "resnet_cpu") for path in copies}
        assert {path for path in files if path.suffix} == programs


def test_the_commands_of_a_wheel_run_its_programs(wheel, tmp_path):
    # Without `site`, no .pth file adds the clone in which the tests run.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(wheel), sysconfig.get_path("purelib")])
    }
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    modules = console_scripts.modules()
    scripts = distribution.entry_points.select(group="console_scripts")
    assert {script.name for script in scripts} == set(modules)

    programs = [f"{script.module}:{script.attr}" for script in scripts]
    done = completed(
        [sys.executable, "-S", "-c", RUN_ALL, *programs], cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = [
        f"resnet-cpu {distribution.version}\n{program} has ended with 0\n"
        for program in programs
    ]
    assert done.stdout == "".join(expected)


def test_metadata_say_what_the_project_is(wheel):
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    metadata = distribution.metadata
    licenses = {metadata.get("License"), metadata.get("License-Expression")}
    assert licenses - {None} == {"Apache-2.0"}
    required = metadata.get_all("Requires-Dist")
    assert 'tensorflow-cpu==2.21.0; platform_machine == "x86_64"' in required
    extras = ("tensorflow-datasets", "tfds"), ("pyarrow", "parquet")
    expected = {f'{package}; extra == "{extra}"' for package, extra in extras}
    assert {"mpich==5.0.2", *expected} <= {*required}
    python = "Programming Language :: Python :: "
    classifiers = set(metadata.get_all("Classifier"))
    assert {f"{python}3.{minor}" for minor in range(10, 14)} <= classifiers
    (address,) = metadata.get_all("Project-URL")
    assert address.endswith("https://arxiv.org/abs/1711.04291")  # Of CITATION.cff.


PROGRAM = """
import resnet

network = resnet.load("MODEL")
reveal_type(network)
reveal_type(network.predict(["cat.jpg"]))
resnet.load(3)
"""


def test_the_types_of_a_wheel_are_seen(wheel, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True
    )
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name in ("data_prep", "resnet"):
        (packages / name).symlink_to(wheel / name)
    (tmp_path / "program.py").write_text(PROGRAM)
    python = f"--python-executable={tmp_path / 'env' / 'bin' / 'python'}"
    done = completed(
        [sys.executable, "-m", "mypy", python, "--cache-dir=cache", "program.py"],
        cwd=tmp_path,
    )
    assert 'Revealed type is "resnet.api.Network"' in done.stdout, done.stdout
    assert "list[resnet.api.Prediction]" in done.stdout
    assert "import-untyped" not in done.stdout
    assert done.stdout.count("error: ") == 1  # That of `resnet.load(3)`.


def test_a_wheel_suggests_its_commands(wheel, tmp_path):
    text = (
        "from resnet.base import commands as c; print(c.command('resnet-eval', 'a b'))"
    )
    done = completed(
        [sys.executable, "-S", "-c", text],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin"},
    )
    program = shlex.quote(str(Path(sys.executable).with_name("resnet-eval")))
    assert done.stdout == f"{program} 'a b'\n", done.stderr


def test_without_tensorflow_there_is_no_wheel(tmp_path):
    copy_project(tmp_path)
    done = build(tmp_path, "-c", WITHOUT_TENSORFLOW)
    assert done.returncode != 0
    assert "which this environment lacks. Run make wheel in a clone" in done.stderr
    assert not (tmp_path / "out").exists()
