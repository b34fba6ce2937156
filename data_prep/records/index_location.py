"""The cache folder for indexes of record sets whose own folder isn't writable."""

import hashlib
import os
import pathlib


def cache_folder(data_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the cache folder for the index of a record set.

    It is `indexes/<hash of the set's absolute path>` in `$RESNET_CPU_CACHE`, else in
    `$XDG_CACHE_HOME/resnet-cpu`, else in `~/.cache/resnet-cpu`.

    Args:
        data_dir: Folder of the record set.
    """
    digest = hashlib.sha256(os.fsencode(os.path.abspath(data_dir))).hexdigest()
    return _cache() / "indexes" / digest[:16]


def _cache() -> pathlib.Path:
    # As in install/build_horovod.sh, an empty variable counts as unset.
    if named := os.environ.get("RESNET_CPU_CACHE"):
        return pathlib.Path(os.path.abspath(named))
    if named := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.path.abspath(named), "resnet-cpu")
    return pathlib.Path(os.path.expanduser("~/.cache/resnet-cpu"))
