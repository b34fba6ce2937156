"""Where the index of a record set lies that others wrote, and can't be written to."""

import hashlib
import os
import pathlib


def cache_folder(data_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the folder for a record set's index, outside of the set.

    It is `indexes/<hash of the set's absolute path>` in `$RESNET_CPU_CACHE`, else in
    `$XDG_CACHE_HOME/resnet-cpu`, else in `~/.cache/resnet-cpu`.

    Args:
        data_dir: The set's folder.
    """
    digest = hashlib.sha256(os.fsencode(os.path.abspath(data_dir))).hexdigest()
    return _cache() / "indexes" / digest[:16]


def _cache() -> pathlib.Path:
    # Empty counts as not set, as install/install.sh has it.
    if named := os.environ.get("RESNET_CPU_CACHE"):
        return pathlib.Path(os.path.abspath(named))
    if named := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.path.abspath(named), "resnet-cpu")
    return pathlib.Path(os.path.expanduser("~/.cache/resnet-cpu"))
