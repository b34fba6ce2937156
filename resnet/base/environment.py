"""What environment variables tell the libraries below: the table of what is settled.

A user, a site or another program has set them, perhaps to what changes numbers, hangs
or crashes a library. They are settled before TensorFlow is imported, in the same way on
all ranks; docs/server.md has the reasons. Standard library only.
"""

import contextlib
from collections.abc import Iterable, Mapping, MutableMapping
from fnmatch import fnmatchcase

# Values may have numbers of a rank in braces; without those, a variable isn't set.
SET = {
    "TF_NUM_INTRAOP_THREADS": "{num_intra_threads}",  # They have flags.
    "TF_NUM_INTEROP_THREADS": "{num_inter_threads}",
    "CUDA_VISIBLE_DEVICES": "-1",  # Without it, TensorFlow warns of missing GPUs.
    "KERAS_BACKEND": "tensorflow",
    "KERAS_HOME": "/dev/null/keras",  # Here no keras.json can be read or written.
    # TensorFlow may never call a tensor ready that is sent as a lost worker comes back.
    "TF_REMOTE_HANDLE_SKIP_WAIT_FOR_READY": "1",
}
# Unless the user has set them.
DEFAULTS = {
    "OMP_NUM_THREADS": "{num_intra_threads}",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "KMP_BLOCKTIME": "{kmp_blocktime}",
    "KMP_SETTINGS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",  # Errors only; else each rank prints notes.
    # TensorFlow's own allocator of tensors, which keeps their memory for later ones.
    # malloc returns large blocks to the kernel, and each step pays for their page
    # faults again, in a virtual machine a quarter of its time.
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(2**24),  # By default it is 64 GB.
    "ONEDNN_MAX_CPU_ISA": "{max_cpu_isa}",
    "HOROVOD_THREAD_AFFINITY": "{horovod_cpus}",
    # A message of Horovod's default size, 128 MiB, doesn't fit into the caches in which
    # it is copied and summed, and takes three times that memory.
    "HOROVOD_FUSION_THRESHOLD": str(8 << 20),
}
# They change what is printed, and speed.
KEPT = (
    *("TF_CPP_*", "ONEDNN_VERBOSE*", "DNNL_VERBOSE*", "GRPC_VERBOSITY", "GRPC_TRACE"),
    *("HOROVOD_LOG_*", "HOROVOD_TIMELINE*", "HOROVOD_CYCLE_TIME"),
    *("GRPC_DEFAULT_SSL_ROOTS_*", "TF_CLI_*", "TF_VAR_*"),  # Of downloads, Terraform.
)
# All others of these libraries.
REMOVED = ("KERAS_*", "TF_*", "XLA_*", "ONEDNN_*", "DNNL_*", "HOROVOD_*", "GRPC_*")
# Outside of ranks, such as in a notebook, only these are set, and no proxies removed.
_ALSO_OUTSIDE = ("KERAS_*", "TF_CPP_*", "TF_CPU_*")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
# Schedulers and users set them for other programs.
_UNTOLD = (*PROXIES, "cuda_visible_devices")
_SHARED = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


def changes(
    environ: Mapping[str, str], numbers: Mapping[str, object] | None = None
) -> dict[str, str | None]:
    """Returns the variables to set, and None for those to remove.

    `numbers` are those of a rank in the values; None outside of ranks.
    """
    changed: dict[str, str | None] = {}
    for name in environ:
        is_proxy = numbers is not None and name.lower() in PROXIES
        is_ours = _fits(name, (*KEPT, *SET, *DEFAULTS))
        if is_proxy or (_fits(name, REMOVED) and not is_ours):
            changed[name] = None
    for name, value in {**DEFAULTS, **SET}.items():
        is_set_here = numbers is not None or _fits(name, _ALSO_OUTSIDE)
        if is_set_here and (name in SET or name not in environ):
            with contextlib.suppress(KeyError):
                changed[name] = value.format_map(numbers or {})
    return changed


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def settle(environ: MutableMapping[str, str], changed: Mapping[str, str | None]) -> str:
    """Makes `changes`; returns a warning of what a user may have meant otherwise."""
    ignored = [
        name
        for name, value in sorted(changed.items())
        if environ.get(name, value) != value and name.lower() not in _UNTOLD
    ]
    for name, value in changed.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    if not ignored:
        return ""
    names = ", ".join(ignored)
    return f"without effect here: {names} of the environment (docs/server.md)"


def of_all_ranks(environ: Mapping[str, str]) -> str:
    """Returns the variables that ranks must share: by them each fuses messages."""
    return " ".join(f"{name}={environ.get(name, 'unset')}" for name in _SHARED)
