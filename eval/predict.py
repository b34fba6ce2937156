"""Prints the most probable classes of images, with the network of a training run.

python eval/predict.py --model_dir=MODEL IMAGE FOLDER ...
find FOLDER -name '*.jpg' | python eval/predict.py --model_dir=MODEL --json -

The arguments are image files, folders of them, or - for a list of these on standard
input, one in a line. Images that are not JPEGs are read as the converter reads them.
"""

import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags, logging

from data_prep import errors
from data_prep.errors import EXIT_CODE, UserError
from data_prep.records import manifest
from data_prep.records.manifest import Manifest
from data_prep.sources import imagenet_labels
from eval import checkpoint_choice, image_files
from eval.prediction_report import JsonLines, Predicted, Table
from resnet import shared_flags
from resnet.config.config import Config, load_config
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

if TYPE_CHECKING:  # They import TensorFlow.
    import tensorflow as tf

    from resnet.evaluation.predictor import Predictor
    from resnet.train_state import TrainState

FLAGS = flags.FLAGS


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since other programs
    define flags of the same names.
    """
    define_integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
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


def main(arguments: Sequence[str]) -> None:
    """Predicts as the flags say.

    Args:
        arguments: The images, as this program takes them.
    """
    check_flags(arguments)
    config = load_config(FLAGS.model_dir)
    check_run(config)
    problems = Problems()
    paths = list(image_files.find(names_in(arguments), problems))
    if paths:
        contents = training_set(config)
        predict_all(paths, config, contents, problems)
    elif not problems.count:
        raise UserError("standard input must name images; it is empty.")
    if problems.count:
        sys.exit(EXIT_CODE)


def check_flags(arguments: Sequence[str]) -> None:
    """Refuses flags and arguments that no run can be used with.

    Raises:
        UserError: With a sentence for the first of them.
    """
    if not arguments:
        raise UserError("images are required: name files or folders, or - for a list.")
    if not FLAGS.model_dir:
        raise UserError("--model_dir is required and must name a folder.")
    for name in ("top_k", "batch_size"):
        if FLAGS[name].value < 1:
            raise UserError(f"--{name} must be at least 1; got {FLAGS[name].value}.")


def check_run(config: Config) -> None:
    """Refuses flags that the run doesn't fit.

    Raises:
        UserError: With a sentence for the first such flag.
    """
    checkpoint_choice.choose(
        "latest" if FLAGS.step is None else [FLAGS.step], pathlib.Path(FLAGS.model_dir)
    )
    if FLAGS["top_k"].present and FLAGS.top_k > config.num_classes:
        raise UserError(
            f"--top_k must be at most {config.num_classes}, the number of classes of"
            f" the run; got {FLAGS.top_k}."
        )
    if FLAGS.weights == "ema" and not config.ema_decay:
        raise UserError(
            "--weights=ema needs a run with EMA weights (--ema_decay); the run in"
            f" {FLAGS.model_dir} has none."
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


def training_set(config: Config) -> Manifest | None:
    """Returns the metadata of the set that the run was trained on, if it is there."""
    try:
        found = manifest.find(config.data_dir) if config.data_dir else None
    except UserError:
        return None
    is_same = found is not None and found.manifest.class_names == config.class_names
    return found.manifest if found is not None and is_same else None


def predict_all(
    paths: Sequence[str],
    config: Config,
    contents: Manifest | None,
    problems: Problems,
) -> None:
    """Prints the predictions for images, batch by batch.

    Args:
        paths: The paths of the images, at least one.
        config: The settings of the run.
        contents: The metadata of the set that it was trained on; None if unknown.
        problems: What is told of images that can't be read.
    """
    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)
    process = ProcessInfo()
    startup.start_on_own_cores(process, Communicator(process), 0, 0, 1)
    from resnet.evaluation import evaluated_weights
    from resnet.evaluation.predictor import Predictor

    state = restored_state(config)
    names = config.class_names
    described = contents.class_descriptions if contents else ()
    described = described or imagenet_labels.describe(names)
    set_format = contents.image_format if contents else None
    report = JsonLines() if FLAGS.json else Table(paths, names, bool(described))
    weights = FLAGS.weights or evaluated_weights.all_of(state)[-1]
    for _ in evaluated_weights.each(state, [weights], None, 1):
        predictor = Predictor(state.model, config)
        for first in range(0, len(paths), FLAGS.batch_size):
            batch = paths[first : first + FLAGS.batch_size]
            images = read_images(batch, set_format, predictor, problems)
            for path, predicted in predict(predictor, images, config, described):
                report.add(path, predicted)


def restored_state(config: Config) -> "TrainState":
    """Returns the state of the run, as --step chooses it.

    Raises:
        UserError: If the checkpoint is damaged or gone.
    """
    from resnet.checkpoint import restore, tensors
    from resnet.train_state import TrainState

    model_dir = pathlib.Path(FLAGS.model_dir)
    if FLAGS.step is None:
        saved = tensors.load_newest(model_dir)
        if saved is None:
            raise UserError(f"no checkpoint has been saved in {model_dir} yet.")
    else:
        saved = tensors.load(model_dir, FLAGS.step)
    state = TrainState(config)
    restore.restore(state, saved)
    return state


def read_images(
    paths: Sequence[str],
    set_format: str | None,
    predictor: "Predictor",
    problems: Problems,
) -> list[tuple[str, "tf.Tensor"]]:
    """Returns the paths of the images that can be read, each with its values.

    Args:
        paths: The paths of the images.
        set_format: As `image_files.read` takes it.
        predictor: What preprocesses the images.
        problems: What is told of images that can't be read.
    """
    import tensorflow as tf

    def read(path: str) -> "tf.Tensor | str":
        try:
            return predictor.preprocess(*image_files.read(path, set_format))
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
    predictor: "Predictor",
    images: Sequence[tuple[str, "tf.Tensor"]],
    config: Config,
    descriptions: Sequence[str],
) -> Iterator[tuple[str, list[Predicted]]]:
    """Yields the path of each image and its most probable classes.

    Args:
        predictor: The network.
        images: The path and the values of each image, as `read_images` returns them.
        config: The settings of the run.
        descriptions: The description of each class, or nothing.

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
            f"the network of the run in {FLAGS.model_dir} predicts NaN or infinity, so"
            " its training has diverged. Name another checkpoint with --step."
        )
    best = top_classes(rows, min(FLAGS.top_k, config.num_classes))
    for (path, _), row, indices in zip(images, rows, best, strict=True):
        yield (
            path,
            [
                Predicted(
                    config.class_names[index],
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
