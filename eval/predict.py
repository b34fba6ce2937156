"""Prints the most probable classes of images, with the network of a run.

python eval/predict.py --model_dir=MODEL IMAGE FOLDER
python eval/predict.py --exported_model=EXPORT IMAGE FOLDER
find FOLDER -name '*.jpg' | python eval/predict.py --model_dir=MODEL --json -

The arguments are image files, folders of them, or - for a list of these on
standard input, one in a line. Images that are not JPEGs are read as the
converter reads them.
"""

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags, logging

from data_prep import image_file
from data_prep.sources import imagenet_labels
from eval import checkpoint_choice, image_files
from eval.prediction_report import JsonLines, Predicted, Table
from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import EXIT_CODE, UserError
from resnet.config.config import Config, load_config
from resnet.distributed.communicator import Communicator
from resnet.export import contents
from resnet.export.exported_network import ExportedNetwork, ExportedPredictor
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

if TYPE_CHECKING:  # They import TensorFlow.
    import tensorflow as tf

    from resnet.checkpoint.restore import TrainedNetwork
    from resnet.evaluation.predictor import Predictor

FLAGS = flags.FLAGS


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since other programs
    define flags of the same names.
    """
    define_integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    flags.DEFINE_string(
        "exported_model",
        None,
        "An exported network to predict with, in place of a run: a SavedModel, or a"
        " network in the format keras, onnx, tflite or openvino.",
        flag_values=flag_values,
    )
    define_integer(
        "step", None, "Step of the checkpoint to predict with; unset, the newest one."
    )
    flags.DEFINE_enum(
        "weights",
        None,
        ("raw", "ema"),
        "Weights to predict with: raw, or ema (their exponential moving average). By"
        " default ema if the run has EMA weights, else raw.",
        flag_values=flag_values,
    )
    define_integer(
        "top_k",
        5,
        "The number of classes per image; by default all if there are fewer.",
    )
    define_integer("batch_size", 32, "The number of images processed at a time.")
    flags.DEFINE_bool(
        "json",
        False,
        "Print a JSON object per image instead of a table.",
        flag_values=flag_values,
    )


class Problems:
    """Reports what can't be read on standard error, in one sentence each.

    Attributes:
        count: The number of sentences.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, sentence: str) -> None:
        """Prints a sentence."""
        self.count += 1
        print(f"error: {sentence}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Network:
    """A network to predict with, which is loaded later.

    Attributes:
        name: What it is, for messages.
        class_names: The names of the classes, in the order of the labels.
        descriptions: The description of each class, or nothing.
        image_format: The format of the images of the training set; None if unknown.
        apply_exif_orientation: Whether that set was converted with
            --apply_exif_orientation.
        load: A function that loads it. It imports TensorFlow.
    """

    name: str
    class_names: Sequence[str]
    descriptions: Sequence[str]
    image_format: str | None
    apply_exif_orientation: bool
    load: "Callable[[], Predictor | ExportedPredictor]"


def main(arguments: Sequence[str]) -> None:
    """Predicts as the flags say.

    Args:
        arguments: The images, as this program takes them.
    """
    check_flags(arguments)
    network = exported_network() if FLAGS.exported_model else network_of_run()
    num_classes = len(network.class_names)
    if FLAGS["top_k"].present and FLAGS.top_k > num_classes:
        raise UserError(
            f"--top_k must be at most {num_classes}, the number of classes of"
            f" {network.name}; got {FLAGS.top_k}."
        )
    problems = Problems()
    paths = list(image_files.find(names_in(arguments), problems))
    if paths:
        predict_all(paths, network, problems)
    elif not problems.count:
        raise UserError("standard input must name images; it is empty.")
    if problems.count:
        sys.exit(EXIT_CODE)


def check_flags(arguments: Sequence[str]) -> None:
    """Refuses flags and arguments that no network can be used with.

    Raises:
        UserError: With a sentence for the first of them.
    """
    if not arguments:
        raise UserError("images are required: name files or folders, or - for a list.")
    if bool(FLAGS.model_dir) == bool(FLAGS.exported_model):
        raise UserError(
            "one of --model_dir and --exported_model is required: the folder of a run,"
            " or an exported network."
        )
    for name in ("step", "weights"):
        if FLAGS.exported_model and FLAGS[name].value is not None:
            raise UserError(
                f"--{name} is for --model_dir; an exported network has one set of"
                " weights. Leave it out."
            )
    for name in ("top_k", "batch_size"):
        if FLAGS[name].value < 1:
            raise UserError(f"--{name} must be at least 1; got {FLAGS[name].value}.")


def exported_network() -> Network:
    """Returns the network that --exported_model names.

    Raises:
        UserError: If it can't be read.
    """
    exported = ExportedNetwork(pathlib.Path(FLAGS.exported_model))
    known = exported.contents

    return Network(
        f"the network in {FLAGS.exported_model}",
        known.class_names,
        known.class_descriptions or imagenet_labels.describe(known.class_names),
        known.image_format or None,
        known.apply_exif_orientation,
        lambda: ExportedPredictor(exported),
    )


def network_of_run() -> Network:
    """Returns the network of the run in --model_dir, as the flags choose it.

    Raises:
        UserError: If the run doesn't have it.
    """
    config = load_config(FLAGS.model_dir)
    model_dir = pathlib.Path(FLAGS.model_dir)
    checkpoint_choice.require(FLAGS.step, FLAGS.weights, config, model_dir)
    known = contents.training_set(config)
    described = known.class_descriptions if known else ()

    def load() -> "Predictor":
        from resnet.evaluation.predictor import Predictor

        return Predictor(restored_network(config).model, config)

    return Network(
        f"the network of the run in {FLAGS.model_dir}",
        config.class_names,
        described or imagenet_labels.describe(config.class_names),
        known.image_format if known else None,
        known is not None and known.apply_exif_orientation,
        load,
    )


def names_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, and in the place of - the lines of standard input."""
    for argument in arguments:
        if argument != "-":
            yield argument
            continue
        for line in sys.stdin.buffer:
            if name := os.fsdecode(line.rstrip(b"\r\n")):
                yield name


def predict_all(paths: Sequence[str], network: Network, problems: Problems) -> None:
    """Prints the predictions for images, batch by batch.

    Args:
        paths: The paths of the images, at least one.
        network: The network.
        problems: What is told of images that can't be read.
    """
    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)
    process = ProcessInfo()
    startup.start_on_own_cores(process, Communicator(process), 0, 0, 1)
    predictor = network.load()
    has_descriptions = bool(network.descriptions)
    names = network.class_names
    report = JsonLines() if FLAGS.json else Table(paths, names, has_descriptions)
    for first in range(0, len(paths), FLAGS.batch_size):
        batch = paths[first : first + FLAGS.batch_size]
        images = read_images(batch, network, predictor, problems)
        for path, predicted in predict(predictor, images, network):
            report.add(path, predicted)


def restored_network(config: Config) -> "TrainedNetwork":
    """Returns the network of the run, as --step and --weights choose it.

    Raises:
        UserError: If the checkpoint is corrupt or gone.
    """
    from resnet.checkpoint import restore

    model_dir = pathlib.Path(FLAGS.model_dir)
    return restore.load_network(config, model_dir, FLAGS.step, FLAGS.weights)


def read_images(
    paths: Sequence[str],
    network: Network,
    predictor: "Predictor | ExportedPredictor",
    problems: Problems,
) -> list[tuple[str, "tf.Tensor"]]:
    """Returns the paths of the images that can be read, each with its values.

    Args:
        paths: The paths of the images.
        network: The network, which says how the images are read.
        predictor: What preprocesses the images.
        problems: What is told of images that can't be read.
    """
    import tensorflow as tf

    def read(path: str) -> "tf.Tensor | str":
        try:
            file = image_file.read(
                path, network.image_format, network.apply_exif_orientation
            )
            return predictor.preprocess(*file)
        except UserError as error:
            return str(error)
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].rstrip(".")
            return f"{path} can't be decoded as an image: {reason}."

    found = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path, image in zip(paths, pool.map(read, paths), strict=True):
            if isinstance(image, str):
                problems(image)
            else:
                found.append((path, image))
    return found


def predict(
    predictor: "Predictor | ExportedPredictor",
    images: Sequence[tuple[str, "tf.Tensor"]],
    network: Network,
) -> Iterator[tuple[str, list[Predicted]]]:
    """Yields the path of each image and its most probable classes.

    Args:
        predictor: What computes the network.
        images: The path and the values of each image, as `read_images` returns them.
        network: The network.

    Raises:
        UserError: If the probabilities aren't finite.
    """
    import numpy as np
    import tensorflow as tf

    from resnet.evaluation.predictor import top_classes

    if not images:
        return
    rows = predictor.probabilities(tf.stack([image for _, image in images]))
    if not np.isfinite(rows).all():
        raise UserError(
            f"{network.name} predicts NaN or infinity, so its training has diverged."
            " Take an earlier checkpoint of its run."
        )
    names, descriptions = network.class_names, network.descriptions
    best = top_classes(rows, min(FLAGS.top_k, len(names)))
    for (path, _), row, indices in zip(images, rows, best, strict=True):
        yield (
            path,
            [
                Predicted(
                    names[index],
                    index,
                    float(row[index]),
                    descriptions[index] if descriptions else "",
                )
                for index in indices.tolist()
            ],
        )


def run() -> None:
    """Runs the program and exits."""
    shared_flags.keep_only(("model_dir",))
    define_flags(FLAGS)
    errors.run_with_arguments(main)


if __name__ == "__main__":
    run()
