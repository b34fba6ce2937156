"""Which MPI library belongs to a launcher."""

import os
from types import SimpleNamespace
from unittest import mock

import pytest

from resnet.base.errors import EXIT_CODE, NodeError, UserError
from resnet.distributed import mpi_library
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import program
from tests.unit.test_placement import HYDRA, OPEN_MPI, SLURM_STEP

PMIX = {**SLURM_STEP, "PMIX_RANK": "5"}
PMI2 = {**SLURM_STEP, "PMI_RANK": "5", "PMI_SIZE": "8"}
MPICH, DEBIAN, OPEN = "libmpi.so.12", "libmpich.so.12", "libmpi.so.40"


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        (HYDRA, {f"1/{MPICH}", f"2/{MPICH}"}, f"1/{MPICH}"),
        (HYDRA, {f"1/{OPEN}", f"2/{MPICH}"}, f"2/{MPICH}"),
        (HYDRA, {f"1/{DEBIAN}", f"2/{MPICH}"}, f"1/{DEBIAN}"),
        (HYDRA, {f"1/{OPEN}"}, None),
        ({**HYDRA, **SLURM_STEP, "PMIX_RANK": "0"}, {f"1/{OPEN}"}, None),
        (OPEN_MPI, {f"1/{MPICH}", f"2/{OPEN}"}, f"2/{OPEN}"),
        (OPEN_MPI | PMIX, {f"1/{MPICH}"}, None),
        (PMI2, {f"1/{OPEN}", f"2/{MPICH}"}, f"2/{MPICH}"),
        (PMI2, {f"2/{OPEN}"}, f"2/{OPEN}"),
        (PMIX, {f"1/{MPICH}", f"2/{OPEN}"}, f"2/{OPEN}"),
        (PMIX, {f"2/{MPICH}"}, f"2/{MPICH}"),
        (SLURM_STEP, set(), None),
        ({**HYDRA, "MPI4PY_LIBMPI": "own.so"}, {f"1/{MPICH}"}, "own.so"),
    ],
)
def test_the_library_is_that_of_the_launcher(environ, files, expected):
    def choose() -> str:
        return mpi_library.choose(environ, ["1", "2", "1"], files.__contains__)

    if expected is not None:
        assert choose() == expected
        return
    with pytest.raises(NodeError, match=r"has started this process.* none of 1, 2\. "):
        choose()


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """The folder of an Open MPI, whose orted is this process's grandparent."""
    programs = {os.getpid(): 12, 12: 11, 11: 1}
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(mpi_library.proc, "parent_of", programs.get)
    paths = {"/proc/11/exe": str(tmp_path / "bin/orted"), "/proc/12/exe": "/bin/sh"}
    readlink = os.readlink
    monkeypatch.setattr(
        mpi_library.os, "readlink", lambda path: paths.get(path) or readlink(path)
    )
    return tmp_path


@pytest.mark.parametrize("folder", ["lib", "lib64"])
def test_the_folders_of_the_launcher_come_before_those_of_modules(launcher, folder):
    for path in (launcher / folder, launcher / "module"):
        path.mkdir()
        (path / OPEN).touch()
    environ = {**OPEN_MPI, "LD_LIBRARY_PATH": f":{launcher / 'module'}"}
    folders = list(mpi_library._folders(environ))
    assert mpi_library.choose(environ, folders) == str(launcher / folder / OPEN)
    (launcher / folder / OPEN).unlink()
    assert mpi_library.choose(environ, folders) == str(launcher / "module" / OPEN)


def test_mpi4py_is_told_the_library_and_nothing_else_of_its_interface(launcher):
    (launcher / "lib").mkdir()
    (launcher / "lib" / OPEN).touch()
    environ = {**OPEN_MPI, "MPI4PY_MPIABI": "mpich"}
    mpi_library.prepare(environ)
    assert environ == {**OPEN_MPI, "MPI4PY_LIBMPI": str(launcher / "lib" / OPEN)}


def test_a_library_of_another_name_that_cannot_be_loaded_is_named(tmp_path):
    path = tmp_path / DEBIAN
    path.write_text("none")
    with pytest.raises(NodeError, match=f"{path} can't be loaded"):
        mpi_library.prepare({**HYDRA, "MPI4PY_LIBMPI": str(path)})


@pytest.mark.parametrize(
    ("vendor", "is_of_site", "expected"),
    [
        ("Open MPI", False, "mpi_lib_openmpi.so"),
        ("MPICH", False, "mpi_lib_mpich.so"),
        ("Open MPI", True, "mpi_lib_site.so"),
    ],
)
def test_the_library_of_horovod_has_the_interface_of_mpi4py(
    tmp_path, monkeypatch, vendor, is_of_site, expected
):
    monkeypatch.setattr(mpi_library, "_horovod_folder", lambda: tmp_path)
    if is_of_site:
        (tmp_path / "mpi_lib_site.so").touch()
        environ = dict(HYDRA)
        mpi_library.prepare(environ)
        assert environ == HYDRA  # Both are linked to the MPI of the site.
    mpi = SimpleNamespace(get_vendor=lambda: (vendor, (4, 1, 8)))
    assert mpi_library.horovod_library(mpi) == expected


@pytest.mark.parametrize(
    ("error", "local_rank", "is_told"),
    [(NodeError, 0, True), (NodeError, 1, False), (UserError, 1, True)],
)
def test_what_all_ranks_of_a_node_find_is_told_once(
    monkeypatch, capsys, error, local_rank, is_told
):
    fail = mock.Mock(side_effect=error("no library"))
    seconds: list[float] = []
    place = ProcessInfo(4 + local_rank, 8, local_rank, 2)
    monkeypatch.setattr(program.placement, "find_process_info", lambda _: place)
    monkeypatch.setattr(program.distributed, "connect", fail)
    monkeypatch.setattr(program.time, "sleep", seconds.append)
    assert program.run(lambda *_: None, []) == EXIT_CODE
    assert capsys.readouterr().err == is_told * "error: no library\n"
    assert seconds == [] if is_told else [1.0]  # Else the launcher ends the first rank.
