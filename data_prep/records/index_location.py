"""The cache folder, also for indexes of record sets whose folder isn't writable."""

import hashlib
import os
import pathlib


def cache_folder(data_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the cache folder for the index of a record set.

    It is `indexes/<hash of the set's absolute path>` in `cache()`.

    Args:
        data_dir: Folder of the record set.
    """
    digest = hashlib.sha256(os.fsencode(os.path.abspath(data_dir))).hexdigest()
    return cache() / "indexes" / digest[:16]


def cache() -> pathlib.Path:
    """Returns the cache folder of this project, which needn't exist.

    It is `$RESNET_CPU_CACHE`, else `$XDG_CACHE_HOME/resnet-cpu`, else
    `~/.cache/resnet-cpu`.
    """
    # As in install/build_horovod.sh, an empty variable counts as unset.
    if named := os.environ.get("RESNET_CPU_CACHE"):
        return pathlib.Path(os.path.abspath(named))
    if named := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.path.abspath(named), "resnet-cpu")
    return pathlib.Path(os.path.expanduser("~/.cache/resnet-cpu"))
