"""Flags that several programs have; read by the programs only."""

from absl import flags

from data_prep.errors import UserError
from resnet.config import Config
from resnet.setting_bounds import ON_BAD_RECORD

FLAGS = flags.FLAGS

MOST_THREADS = 4096

flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of a converted data set, or of one by TensorFlow Datasets or the TPU"
    " scripts.",
)
flags.DEFINE_string("model_dir", None, "Folder of the run: settings, logs, weights.")
flags.DEFINE_integer(
    "eval_batch_size",
    Config.eval_batch_size,
    "Images in one step of evaluation, over all ranks.",
)
flags.DEFINE_integer(
    "recalibration_batches",
    None,
    "Before evaluating, take batch normalization's statistics from so many batches of"
    " training images, each as large as a rank's in training; 0: from the training.",
)
flags.DEFINE_integer(
    "num_intra_threads", 0, "Threads that share one op; 0 takes one a core of the rank."
)
flags.DEFINE_integer("num_inter_threads", 0, "Ops that run at once; 0 takes one.")
flags.DEFINE_integer(
    "kmp_blocktime",
    1,
    "Milliseconds that a thread of OpenMP spins before it sleeps; without effect in"
    " stock TensorFlow.",
)
flags.DEFINE_bool("use_tpu", False, "Must be False: this program is for CPUs.")
flags.DEFINE_integer(
    "num_parallel_calls",
    Config.num_parallel_calls,
    "Threads that decode pictures; 0 takes one a processor.",
)
flags.DEFINE_string(
    "on_bad_record",
    Config.on_bad_record,
    "What a damaged record does: fail ends the run, skip takes another in its place and"
    " counts it.",
)
flags.DEFINE_float(
    "stall_seconds",
    120.0,
    "How long one rank may stand still, or not be heard of, until the job ends.",
)


def check() -> None:
    """Refuses what no program can work with.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    check_values()
    for name in ("data_dir", "model_dir"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required and must name a folder.")


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
        ("eval_batch_size", 1),
        ("num_intra_threads", 0),
        ("num_inter_threads", 0),
        ("kmp_blocktime", 0),
        ("num_parallel_calls", 0),
        ("stall_seconds", 1),
    ):
        value = FLAGS[name].value
        if value < lowest:
            raise UserError(f"--{name} must be at least {lowest}; got {value}.")
        if name.startswith("num_") and value > MOST_THREADS:
            raise UserError(f"--{name} must be at most {MOST_THREADS}; got {value}.")
    if FLAGS.on_bad_record not in ON_BAD_RECORD:
        raise UserError(
            f"--on_bad_record must be one of {', '.join(ON_BAD_RECORD)}; got"
            f" {FLAGS.on_bad_record}."
        )
