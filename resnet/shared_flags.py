"""Flags that several programs have."""

import os
from collections.abc import Collection

from absl import flags

from data_prep.records import manifest
from resnet import setting_flags
from resnet.base import bounds
from resnet.base.errors import UserError
from resnet.config.config import Config

FLAGS = flags.FLAGS

_SPLITS = (manifest.TRAIN, manifest.VALIDATION)

MOST_THREADS = 4096
# Settings of a run that programs other than the training program have flags for too.
_WITHOUT_DEFAULTS = ("data_dir", "model_dir", "recalibration_batches")
_WITH_DEFAULTS = ("eval_batch_size", "num_parallel_calls", "on_bad_record")
SETTINGS = (*_WITHOUT_DEFAULTS, *_WITH_DEFAULTS)

setting_flags.define(Config, _WITHOUT_DEFAULTS)
setting_flags.define(Config, _WITH_DEFAULTS, has_defaults=True)
flags.DEFINE_integer(
    "num_intra_threads",
    0,
    "The number of threads that share one op; 0 takes one per core of the rank.",
)
flags.DEFINE_integer(
    "num_inter_threads", 0, "The number of ops that run at the same time; 0 takes one."
)
flags.DEFINE_integer(
    "kmp_blocktime",
    1,
    "The milliseconds that an OpenMP thread spins before it sleeps; without effect in"
    " stock TensorFlow.",
)
flags.DEFINE_bool("use_tpu", False, "Must be False, since this program is for CPUs.")
flags.DEFINE_float(
    "stall_seconds",
    120.0,
    "The watchdog's timeout: the seconds that a rank may be without progress or"
    " heartbeat before the job is aborted.",
)


def keep_only(names: Collection[str]) -> None:
    """Removes the flags of this module that a program doesn't use.

    Args:
        names: The names of the flags that stay.
    """
    for name in {flag.name for flag in FLAGS.flags_by_module_dict()[__name__]}:
        if name not in names:
            delattr(FLAGS, name)


def check() -> None:
    """Refuses flags that are missing, or whose values no program can work with.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    check_values()
    for name in ("data_dir", "model_dir"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required and must name a folder.")
    data_dir, model_dir = map(os.path.realpath, (FLAGS.data_dir, FLAGS.model_dir))
    if data_dir == model_dir:
        raise UserError(
            "--data_dir and --model_dir must be different folders; got"
            f" {FLAGS.data_dir} for both. Give the run a folder of its own."
        )
    if model_dir in [os.path.join(data_dir, name) for name in _SPLITS]:
        raise UserError(
            f"--model_dir must not be a folder of records; got {FLAGS.model_dir}, a"
            " split of --data_dir. Give the run a folder of its own."
        )


def check_values() -> None:
    """Refuses values that no program can work with.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    if FLAGS.use_tpu:
        raise UserError(
            "--use_tpu must be False: this program trains and evaluates on CPUs. Leave"
            " the flag out."
        )
    for name, lowest in (
        ("num_intra_threads", 0),
        ("num_inter_threads", 0),
        ("kmp_blocktime", 0),
        ("stall_seconds", 1),
    ):
        value = FLAGS[name].value
        if not value >= lowest:  # Unlike `value < lowest`, this refuses NaN.
            raise UserError(f"--{name} must be at least {lowest}; got {value}.")
        if name.startswith("num_") and value > MOST_THREADS:
            raise UserError(f"--{name} must be at most {MOST_THREADS}; got {value}.")
    values = {name: FLAGS[name].value for name in _WITH_DEFAULTS}
    if problems := bounds.validate_overrides(values, Config):
        raise UserError(problems[0])
