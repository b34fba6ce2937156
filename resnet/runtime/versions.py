"""The versions of the installed software, which must be the same on all ranks."""

import hashlib
import importlib.metadata
import platform
from pathlib import Path

PACKAGES = ("tensorflow", "keras", "numpy", "horovod", "mpi4py")
COMPILED_OPS = Path(__file__).parents[1] / "native" / "libresnet_ops.so"
_FOLDERS = ("resnet", "data_prep")
_SOURCES = (".py", ".cc", ".h")


def describe() -> dict[str, str]:
    """Returns the versions and digests of the installed software, by descriptions."""
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
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
