"""What pip builds from a clone: a wheel with the compiled ops, or none."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TENSORFLOW = """
import importlib.metadata as metadata, runpy, sys
version = metadata.version
def version_of(name):
    if name == "tensorflow":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = version_of
sys.argv = ["setup.py", *sys.argv[1:]]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture
def clone(tmp_path):
    """Returns a copy of the project whose ops are built at once."""
    folder = tmp_path / "clone"
    no_library = shutil.ignore_patterns("libresnet_ops*", "__pycache__")
    for name in ("data_prep", "eval", "launch", "resnet"):
        shutil.copytree(ROOT / name, folder / name, ignore=no_library)
    for name in ("setup.py", "pyproject.toml", "requirements.in", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "install").mkdir()
    script = 'cd "$(dirname "$0")/.."; echo "$1" >resnet/native/libresnet_ops.so'
    (folder / "install/build_native.sh").write_text(script)
    return folder


def build(clone, *program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *program, "--quiet", "bdist_wheel", "--dist-dir=out"]
    return subprocess.run(
        words, cwd=clone, capture_output=True, text=True, check=False, timeout=200
    )


def test_a_wheel_holds_the_compiled_ops(clone):
    done = build(clone, "setup.py")
    assert done.returncode == 0, done.stderr
    (wheel,) = (clone / "out").iterdir()
    assert "linux" in wheel.name
    with zipfile.ZipFile(wheel) as file:
        library = file.read("resnet/native/libresnet_ops.so").decode()
        names = file.namelist()
    assert library == f"{sys.prefix}\n"
    assert [name for name in names if name.endswith("/LICENSE")]


def test_without_tensorflow_there_is_no_wheel(clone):
    done = build(clone, "-c", WITHOUT_TENSORFLOW)
    assert done.returncode != 0
    assert "which this environment lacks. Run make venv in a clone" in done.stderr
    assert not (clone / "out").exists()
