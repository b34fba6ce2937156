"""Exports the network of a training run, for use without this project.

python eval/export.py --model_dir=MODEL --out=EXPORT --format=savedmodel
python eval/export.py --model_dir=MODEL --out=network.onnx --format=onnx
"""

import functools
import pathlib
import sys

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags, logging

from eval import checkpoint_choice
from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.config.config import load_config
from resnet.distributed.communicator import Communicator
from resnet.export import contents, formats
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

FLAGS = flags.FLAGS


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since other programs
    define flags of the same names.
    """
    define_enum = functools.partial(flags.DEFINE_enum, flag_values=flag_values)
    flags.DEFINE_string(
        "out",
        None,
        "The file to write, or for savedmodel and openvino the folder. It must not"
        " exist.",
        flag_values=flag_values,
    )
    define_enum("format", "savedmodel", list(formats.FORMATS), "The format to write.")
    flags.DEFINE_integer(
        "step",
        None,
        "Step of the checkpoint to export; unset, the newest one.",
        flag_values=flag_values,
    )
    define_enum(
        "weights",
        None,
        ("raw", "ema"),
        "Weights to export: raw, or ema (their exponential moving average). By default"
        " ema if the run has EMA weights, else raw.",
    )
    define_enum(
        "precision",
        formats.FLOAT32,
        formats.PRECISIONS,
        "The precision of the export; int8 has weights of 8 bits. docs/export.md says"
        " which formats have which.",
    )
    flags.DEFINE_bool(
        "fold_batch_norm",
        True,
        "Whether batch normalization is folded into the convolutions. Unfolded, the"
        " formats keras and safetensors can be trained on; torchvision always is.",
        flag_values=flag_values,
    )


def main() -> None:
    """Exports as the flags say."""
    for name in ("model_dir", "out"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required.")
    out = pathlib.Path(FLAGS.out)
    model_dir = pathlib.Path(FLAGS.model_dir)
    is_folded = FLAGS.fold_batch_norm and formats.FORMATS[FLAGS.format].can_be_folded
    formats.check(FLAGS.format, FLAGS.precision, is_folded, out)
    config = load_config(FLAGS.model_dir)
    checkpoint_choice.require(FLAGS.step, FLAGS.weights, config, model_dir)
    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)
    process = ProcessInfo()
    startup.start_on_own_cores(process, Communicator(process), 0, 0, 1)
    from resnet.checkpoint import restore

    trained = restore.load_network(config, model_dir, FLAGS.step, FLAGS.weights)
    described = contents.of_run(
        config, trained.step, trained.weights, FLAGS.precision, is_folded
    )
    formats.write(FLAGS.format, trained, described, out)
    errors.print_to_pipe(
        f"{out}: {config.model} of step {trained.step} ({trained.weights} weights),"
        f" {config.num_classes} classes, {FLAGS.precision}"
    )


def run() -> None:
    """Runs the program and exits."""
    shared_flags.keep_only(("model_dir",))
    define_flags(FLAGS)
    errors.run(main)


if __name__ == "__main__":
    run()
