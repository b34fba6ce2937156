"""The recipes of containers copy what a set-up needs, and both the same."""

import re

from tests.processes import completed
from tests.sources import ROOT

RECIPES = ROOT / "install/container"
MAKEFILE = ROOT / "Makefile"


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


def is_ignored(path: str) -> bool:
    """Returns whether .dockerignore has a path, as `*` and `**/` are read by Docker."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    for pattern in (line for line in lines if line and not line.startswith("#")):
        regex = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{regex}(/.*)?", path):
            return True
    return False


def test_what_was_made_in_the_clone_is_not_copied():
    for path in (
        *(".git/config", ".venv.lock", ".venv/bin/python"),
        "demo-run/model/config.json",
        "resnet/__pycache__/api.cpython-311.pyc",
        "resnet/native/libresnet_ops.so",
        "resnet/native/libresnet_ports.so",
        "resnet_cpu.egg-info/PKG-INFO",
    ):
        assert is_ignored(path), path


def test_all_that_make_clean_removes_is_not_copied():
    (removed,) = re.findall(r"^\trm -rf (\.venv .*)$", MAKEFILE.read_text(), re.M)
    for path in removed.replace("*", "x").split():
        assert is_ignored(path), path
    # Apptainer doesn't read .dockerignore.
    assert "\nmake -C /opt/resnet-cpu clean\n" in (RECIPES / "build.sh").read_text()


def test_sources_are_copied():
    words = ["git", "-C", str(ROOT), "ls-files"]
    done = completed(words, check=True)
    assert [path for path in done.stdout.splitlines() if is_ignored(path)] == []
