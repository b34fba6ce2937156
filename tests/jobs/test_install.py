"""`make venv`, with stand-ins for what it installs."""

import copy
import mmap
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.jobs.stub_programs import ROOT, Clone


@pytest.fixture
def clone(tmp_path):
    """Returns a clone in which nothing is set up."""
    return new_clone(tmp_path)


def new_clone(folder) -> Clone:
    made = Clone(folder)
    wheel = '#!/bin/sh\necho "$0.whl"\n'
    (made.folder / "install/build_horovod.sh").write_text(wheel)
    return made


@pytest.fixture(scope="module")
def set_up(tmp_path_factory):
    """Returns a function that makes a set-up clone, always the same in the same place.

    Its .venv is known by a file in it.
    """
    place = tmp_path_factory.mktemp("place")
    saved = place.with_name("saved")
    first = new_clone(place)
    done = first.run("install.sh")
    assert done.returncode == 0, done.stderr
    first.calls()
    (first.folder / ".venv/known").touch()
    shutil.copytree(place, saved, symlinks=True)

    def again() -> Clone:
        shutil.rmtree(place)
        shutil.copytree(saved, place, symlinks=True)
        return copy.copy(first)

    return again


@pytest.fixture
def finished(set_up):
    """Returns a clone that is set up, with a file by which its .venv is known."""
    return set_up()


def is_kept(clone) -> bool:
    return (clone.folder / ".venv/known").exists()


def test_a_set_up_ends_with_what_it_has_checked(clone):
    done = clone.run("install.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert "two ranks: the all-reduce works" in done.stdout
    assert "compiled ops: as asked" in done.stdout
    assert "[venv] ready" in done.stdout.splitlines()[-1]
    assert (clone.folder / "resnet/native/libresnet_ops.so").exists()
    assert (clone.folder / ".venv/charts").exists()
    assert f"venv --prompt .venv {clone.folder}/.venv.new" in clone.calls()
    assert not list(clone.folder.glob(".venv.[!l]*"))  # All but the lock.


def test_a_search_path_of_cd_and_a_space_in_the_compilers_path_do_no_harm(clone):
    # `cd` would print the folder that it has found there, or go to another one.
    (clone.folder.parent / "elsewhere/install").mkdir(parents=True)
    (clone.programs / "my tools").mkdir()
    compiler = (clone.programs / "g++").rename(clone.programs / "my tools/g++")
    places = f"{clone.folder.parent}/elsewhere:{clone.folder}"
    done = clone.run("install.sh", CDPATH=places, CXX=str(compiler))
    assert (done.returncode, done.stderr) == (0, "")
    assert (clone.folder / "resnet/native/libresnet_ops.so").exists()


def test_the_function_that_makes_the_library_of_charts_is_there():
    """The other tests have a stand-in for it."""
    script = (ROOT / "install/install.sh").read_text()
    (line,) = re.findall(r'python" -c "(.*); javascript\.script\(\)"', script)
    imported: dict = {}
    exec(line, imported)
    assert callable(imported["javascript"].script)


def test_what_is_installed_names_the_place_where_it_is(finished):
    venv = finished.folder / ".venv"
    assert (venv / "bin/tool").read_text() == f"#!{venv}/bin/python\n"
    assert (venv / "pyvenv.cfg").read_text() == f"command = {venv}\n"


def test_a_second_call_ends_at_once(finished):
    done = finished.run("install.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert finished.calls() == []


def test_a_path_with_a_link_in_it_is_the_same_clone(finished, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(finished.folder)
    words = ["bash", "-c", 'cd "$1" && bash "$1/install/install.sh"', "-", str(link)]
    done = subprocess.run(
        words,
        env={
            "PATH": f"{finished.programs}:{os.defpath}",
            "LOG": str(finished.log),
            "REAL_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert finished.calls() == []
    assert is_kept(finished)


def test_a_change_of_the_locks_is_made_where_it_is(finished):
    (finished.folder / "setup.py").write_text("changed")
    done = finished.run("install.sh")
    assert done.returncode == 0, done.stderr
    assert is_kept(finished)
    assert not any(call.startswith("venv") for call in finished.calls())


def test_without_a_network_what_is_there_stays(finished):
    moved = finished.folder.with_name("moved")
    finished.folder.rename(moved)
    finished.folder = moved
    done = finished.run("install.sh", OFFLINE="1")
    assert done.returncode != 0
    assert "has been moved or copied" in done.stdout
    assert "is as it was before" in done.stdout
    assert is_kept(finished)
    done = finished.run("install.sh")
    assert done.returncode == 0, done.stderr
    assert not is_kept(finished)


def test_another_python_replaces_what_is_there_and_says_so(finished):
    other = finished.programs / "other"
    shutil.copy(finished.programs / "python3", other)
    done = finished.run("install.sh", PYTHON=str(other))
    assert done.returncode == 0, done.stderr
    assert "since it was made with Python 3." in done.stdout
    assert not is_kept(finished)
    assert not list(finished.folder.glob(".venv.[!l]*"))


@pytest.mark.parametrize("name", ["data", "data.new"])
def test_a_folder_that_is_no_environment_is_not_replaced(clone, tmp_path, name):
    (clone.folder / ".venv").symlink_to(tmp_path / "data")
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").touch()
    done = clone.run("install.sh")
    assert done.returncode == 1
    assert done.stderr.startswith(f"make venv: {tmp_path / name} is no virtual env")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.glob("data*/*")] == ["mine"]
    assert clone.calls() == []


def test_what_has_the_name_for_the_previous_environment_is_not_removed(finished):
    aside = finished.folder / ".venv.old"
    aside.mkdir()
    other = finished.programs / "other"
    shutil.copy(finished.programs / "python3", other)
    done = finished.run("install.sh", PYTHON=str(other))
    assert done.returncode == 1
    assert done.stderr.startswith(f"make venv: {aside} is in the way")
    assert len(done.stderr.splitlines()) == 1
    assert aside.exists()
    assert is_kept(finished)
    assert finished.calls() == []


def test_an_environment_that_was_put_aside_stays_there(finished):
    aside = finished.folder / ".venv.old"
    (finished.folder / ".venv").rename(aside)
    done = finished.run("install.sh")
    assert done.returncode == 0, done.stderr
    assert "since there is none" in done.stdout
    assert (aside / "known").exists()
    assert not is_kept(finished)


def test_an_environment_in_use_is_not_replaced(finished):
    other = finished.programs / "other"
    shutil.copy(finished.programs / "python3", other)
    with (
        open(finished.folder / ".venv/bin/python", "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ),
    ):
        done = finished.run("install.sh", PYTHON=str(other))
    assert done.returncode == 1
    assert f"in use by running programs (processes {os.getpid()})" in done.stderr
    assert is_kept(finished)
    assert finished.calls() == []


def test_an_exchange_that_was_cut_short_is_taken_back(finished):
    venv = finished.folder / ".venv"
    venv.rename(finished.folder / ".venv.old")
    (finished.folder / ".venv.replacing").touch()
    done = finished.run("install.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_kept(finished)
    assert not list(finished.folder.glob(".venv.[!l]*"))


def test_what_an_exchange_left_is_removed(finished):
    (finished.folder / ".venv.old").mkdir()
    (finished.folder / ".venv.replacing").touch()
    done = finished.run("install.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_kept(finished)
    assert not list(finished.folder.glob(".venv.[!l]*"))


def test_an_environment_elsewhere_stays_there(clone, tmp_path):
    (tmp_path / "roomy/environment").mkdir(parents=True)
    (clone.folder / ".venv").symlink_to(tmp_path / "roomy/environment")
    done = clone.run("install.sh")
    assert done.returncode == 0, done.stderr
    assert (clone.folder / ".venv").is_symlink()
    assert (tmp_path / "roomy/environment/bin/tool").exists()


def test_a_node_that_forbids_mpi_can_be_set_up(clone):
    done = clone.run("install.sh", SELF_CHECK="no")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mpirun" not in clone.calls()
    assert "make check" in done.stdout
    assert clone.run("check.sh", ".venv").returncode == 0
    assert clone.calls() == ["mpirun"]


def test_after_a_self_check_that_failed_nothing_is_installed_again(clone):
    done = clone.run("install.sh", MPIRUN_DOES="echo forbidden; exit 1")
    assert done.returncode == 1
    assert "forbidden" in done.stderr
    assert "make venv SELF_CHECK=no" in done.stderr
    assert not (clone.folder / ".venv").exists()
    clone.calls()
    done = clone.run("install.sh", SELF_CHECK="no")
    assert (done.returncode, done.stderr) == (0, "")
    assert clone.calls() == []
    assert (clone.folder / ".venv/bin/tool").exists()


def test_an_unknown_self_check_is_refused(clone):
    done = clone.run("install.sh", SELF_CHECK="maybe")
    assert done.returncode == 1
    assert done.stderr == "make venv: SELF_CHECK must be yes or no; got maybe.\n"


def test_a_finished_clone_needs_no_compiler(finished):
    done = finished.run("install.sh", CXX="/no/such/g++")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ops_of_another_compiler_stay_until_one_is_named(finished):
    other = finished.programs / "other"
    shutil.copy(finished.programs / "g++", other)
    library = finished.folder / "resnet/native/libresnet_ops.so"
    first = library.stat()
    assert finished.run("install.sh", CXX=str(other)).returncode == 0
    second = library.stat()
    assert second != first
    assert finished.run("install.sh").returncode == 0
    (finished.folder / "setup.py").write_text("changed")
    done = finished.run("install.sh")
    assert done.returncode == 0
    assert "[venv] ready" in done.stdout
    assert library.stat() == second
    assert finished.run("install.sh", CXX="g++").returncode == 0
    assert library.stat() != second


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        ("mpicxx", "mpicc"),
        ("mpic++", "mpicc"),
        ("mpicxx.openmpi", "mpicc.openmpi"),
        ("mpiicpx", "mpiicx"),
        ("mpiicpc", "mpiicc"),
        ("mpigxx", "mpigcc"),
        ("CC", "cc"),
    ],
)
def test_the_c_wrapper_is_that_of_the_same_mpi(clone, tmp_path, wrapper, expected):
    (tmp_path / "mpi").mkdir()
    wrapper = shutil.copy(clone.programs / "g++", tmp_path / "mpi" / wrapper)
    done = clone.run("install.sh", MPICXX=str(wrapper))
    assert done.returncode == 1
    assert f"no C compiler wrapper {tmp_path}/mpi/{expected} beside" in done.stderr


def test_clean_removes_what_was_made(finished):
    shutil.copy(ROOT / "Makefile", finished.folder)
    done = finished.run_make("clean")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in finished.folder.iterdir()}
    assert not {name for name in names if name.startswith(".venv")}
    native = list((finished.folder / "resnet/native").iterdir())
    assert {path.suffix for path in native} == {".cc", ".h"}


def test_without_locks_of_files_it_goes_on_and_says_so(clone):
    clone.program("flock", "#!/bin/sh\nexit 1\n")
    done = clone.run("install.sh")
    assert done.returncode == 0
    assert "can't be locked here" in done.stderr
    done = clone.run("install.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_packages_may_come_from_a_folder_alone(clone, tmp_path):
    wheels = tmp_path / "all wheels"
    wheels.mkdir()
    done = clone.run("install.sh", WHEELS=str(wheels))
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"from file://{tmp_path}/all%20wheels, no index: 1"
    assert {call for call in clone.calls() if call.startswith("from")} == {expected}


def test_a_folder_of_packages_that_is_not_there_is_named(clone, tmp_path):
    done = clone.run("install.sh", WHEELS=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert f"no folder WHEELS={tmp_path}/nowhere. Make one: make wheels" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_all_locks_are_downloaded(finished):
    shutil.copy(ROOT / "install/build_horovod.sh", finished.folder / "install")
    done = finished.run("wheels.sh", ".venv", "wheels")
    assert (done.returncode, done.stderr) == (0, "")
    downloads = [line for line in finished.calls() if line.startswith("download")]
    hashed = "--no-build-isolation --require-hashes"
    assert all(hashed in line and "--no-deps" in line for line in downloads)
    for lock in ("requirements", "requirements-dev", "requirements-build"):
        assert any(f"-r {lock}.txt" in line for line in downloads)
    assert any("-r install/requirements-mpi4py.txt" in line for line in downloads)
    sources = [line.split("--no-binary ")[1] for line in downloads if "binary" in line]
    assert [source.split()[0] for source in sources] == ["mpi4py", "horovod"]
    wheels = finished.folder / "wheels"
    horovod = (wheels / "horovod.txt").read_text()
    assert re.fullmatch(r"horovod==[\d.]+ --hash=sha256:[0-9a-f]{64}\n", horovod)
    mpi4py = (wheels / "mpi4py.txt").read_text()
    assert re.fullmatch(r"mpi4py==(?:.*\\\n)+ +--hash=\S+\n(?: *#.*\n)*", mpi4py)
