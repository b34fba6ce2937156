"""The installed software: its versions, and where Python imports it from."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from resnet.base.errors import UserError

PACKAGES = ("tensorflow", "keras", "numpy", "horovod", "mpi4py")
# TensorFlow's names on PyPI: the second one lacks what GPUs need.
TENSORFLOW = ("tensorflow", "tensorflow-cpu")
COMPILED_OPS = Path(__file__).parents[1] / "native" / "libresnet_ops.so"
_FOLDERS = ("resnet", "data_prep")
_SOURCES = (".py", ".c", ".cc", ".h")


@functools.cache
def describe() -> dict[str, str]:
    """Returns the versions and digests of the installed software, by descriptions.

    They are those of the first call in this process, which reads all sources.
    """
    versions = {name: _version(name) for name in PACKAGES}
    digest = "none"
    if COMPILED_OPS.exists():
        digest = hashlib.sha256(COMPILED_OPS.read_bytes()).hexdigest()[:16]
    return {
        "version of Python": platform.python_version(),
        **{f"version of {name}": version for name, version in versions.items()},
        "compiled ops (SHA-256)": digest,
        "code of this project (SHA-256)": code_digest(Path(__file__).parents[2])[:16],
    }


def check_origins() -> None:
    """Refuses packages that others hide or replace.

    Raises:
        UserError: If PYTHONPATH or a home's own packages hide one of the environment,
            or if TensorFlow is installed under two names.
    """
    if all(_version_of(name) for name in TENSORFLOW):
        raise UserError(
            f"{' and '.join(TENSORFLOW)} are both installed, and each has replaced"
            " files of the other. Run pip uninstall"
            f" {' '.join(TENSORFLOW)}, and install one of them."
        )
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for name in PACKAGES:
        used, own = PathFinder.find_spec(name), PathFinder.find_spec(name, folders)
        if used is None or own is None or used.origin is None or own.origin is None:
            continue
        if os.path.realpath(used.origin) != os.path.realpath(own.origin):
            raise UserError(
                f"{name} would be imported from {Path(used.origin).parents[1]}, which"
                f" hides that of the environment, in {folders[0]}. Unset PYTHONPATH, or"
                " set PYTHONNOUSERSITE=1 if it is a folder in your home."
            )


def code_digest(root: Path) -> str:
    """Returns the SHA-256 of the sources of the packages that train, in a folder."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in _SOURCES:
                digest.update(f"{file.relative_to(root)}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    names = TENSORFLOW if package == "tensorflow" else (package,)
    if version := next(filter(None, map(_version_of, names)), ""):
        return version
    # A wheel of this project has Horovod within, which takes seconds to import.
    spec = PathFinder.find_spec(package)
    text = Path(spec.origin).read_text() if spec and spec.origin else ""
    match = re.search(r"^__version__ = '(.+)'", text, re.M)
    return match[1] if match else "none"


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
