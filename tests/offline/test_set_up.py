"""`make venv` and its parts in a clone that is really set up.

A set-up takes minutes, so all tests share one: each leaves it as it was.
"""

import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import completed

pytestmark = pytest.mark.offline

REPOSITORY = Path(__file__).resolve().parents[2]


def install(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Returns the end of install.sh in a clone."""
    return completed(
        ["bash", str(folder / "install/install.sh")],
        cwd=folder,
        env={**os.environ, "PATH": os.defpath, **variables},
    )


def copied(folder: Path) -> Path:
    """Returns a new clone in a folder, in which nothing is set up."""
    clone = folder / "a clone"
    ignored = shutil.ignore_patterns(".venv*", ".git", "demo-run", "wheels", "*.so*")
    shutil.copytree(REPOSITORY, clone, ignore=ignored, symlinks=True)
    return clone


@pytest.fixture(scope="module")
def set_up(tmp_path_factory) -> Path:
    """Returns a clone that is set up, with a file by which its .venv is known."""
    clone = copied(tmp_path_factory.mktemp("set_up"))
    done = install(clone, PYTHON=os.path.realpath(sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[check] two ranks: the all-reduce works" in done.stdout
    assert "[check] compiled ops: yes" in done.stdout
    assert "[venv] ready" in done.stdout
    assert re.search(r"^\[venv\] \d+:\d\d compiling ops \d+ of \d+$", done.stdout, re.M)
    assert "next: make demo" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    (clone / ".venv/known").touch()
    return clone


@pytest.fixture
def clone(set_up) -> Iterator[Path]:
    yield set_up
    assert (set_up / ".venv/known").exists()
    assert not list(set_up.glob(".venv.[!l]*"))  # All but the lock.


def assert_refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("make venv: "), done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def assert_nothing_done(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_second_call_ends_at_once_also_by_another_path(clone, tmp_path):
    assert_nothing_done(install(clone))
    link = tmp_path / "link"
    link.symlink_to(clone)
    assert_nothing_done(install(link))


def test_a_finished_clone_needs_no_compiler(clone):
    assert_nothing_done(install(clone, CXX=""))


def test_an_exchange_that_was_cut_short_is_taken_back(clone):
    (clone / ".venv").rename(clone / ".venv.old")
    (clone / ".venv.replacing").touch()
    assert_nothing_done(install(clone))


def test_what_an_exchange_left_is_removed(clone):
    (clone / ".venv.old").mkdir()
    (clone / ".venv.replacing").touch()
    assert_nothing_done(install(clone))


@pytest.fixture
def half_changed(clone) -> Iterator[Path]:
    """Returns the clone, whose environment a call with PYTHON would replace."""
    (clone / ".venv/unfinished").touch()
    yield clone
    (clone / ".venv/unfinished").unlink()


OTHER = {"PYTHON": sys.executable}  # Another path than that of the set-up.


def test_an_environment_in_use_is_not_replaced(half_changed):
    clone = half_changed
    with (
        open(clone / ".venv/bin/activate", "rb"),
        open(next((clone / ".venv/lib").rglob("libmpi*.so*")), "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ),
    ):
        done = install(clone, **OTHER)
    assert done.returncode == 1
    assert f"in use by running programs (processes {os.getpid()})" in done.stderr


def test_what_has_the_name_for_the_previous_environment_is_not_removed(half_changed):
    aside = half_changed / ".venv.old"
    aside.mkdir()
    try:
        assert_refused(install(half_changed, **OTHER), f"{aside} is in the way")
    finally:
        aside.rmdir()


@pytest.mark.parametrize("name", ["data", "data.new"])
def test_a_folder_that_is_no_environment_is_not_replaced(tmp_path, name):
    clone = copied(tmp_path)
    (clone / ".venv").symlink_to(tmp_path / "data")
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").touch()
    assert_refused(install(clone), f"{tmp_path / name} is no virtual env")
    assert [path.name for path in tmp_path.glob("data*/*")] == ["mine"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SELF_CHECK": "perhaps"}, "SELF_CHECK must be yes or no; got perhaps."),
        ({"WHEELS": "/no/such/folder"}, "there is no folder WHEELS=/no/such/folder"),
        ({"MPICXX": "/no/such/mpicxx"}, "there is no program MPICXX=/no/such/mpicxx"),
    ],
)
def test_a_wrong_choice_is_named(clone, variables, words):
    assert_refused(install(clone, **variables), words)


def test_a_library_of_other_sources_does_not_stay_without_a_compiler(clone):
    library, source = (
        clone / "resnet/native" / name for name in ("libresnet_ops.so", "kernels.h")
    )
    kept, text = library.read_bytes(), source.read_text()
    source.write_text(f"{text}// Changed.\n")
    words = ["bash", "install/build_native.sh", ".venv"]
    done = completed(words, cwd=clone, env={**os.environ, "CXX": "/no/such/g++"})
    assert done.returncode == 1
    assert "'/no/such/g++' can't be run" in done.stderr
    assert not library.exists()
    source.write_text(text)
    library.write_bytes(kept)
    library.chmod(0o755)


def test_fast_math_does_not_compile():
    header = REPOSITORY / "resnet/native/bf16.h"
    command = ("g++", "-std=c++17", "-fsyntax-only", "-x", "c++", str(header))
    for options, is_compiled in ([], True), (["-ffast-math"], False):
        done = completed([*command, *options])
        assert (done.returncode == 0) == is_compiled
        assert ("without -ffast-math" in done.stderr) != is_compiled


def test_a_built_horovod_is_kept_and_used_again(clone):
    script = ["bash", "install/build_horovod.sh", str(clone / ".venv")]
    done = completed(script, cwd=clone)
    assert done.returncode == 0, done.stderr
    assert re.search(r"horovod-.*\.whl$", done.stdout.strip())
    assert "compiling" not in done.stdout
