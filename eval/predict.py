"""Prints the most probable classes or labels of images, by the network of a run.

python eval/predict.py --model_dir=MODEL IMAGE FOLDER
python eval/predict.py --exported_model=EXPORT IMAGE FOLDER
find FOLDER -name '*.jpg' | python eval/predict.py --model_dir=MODEL --json -

The arguments are image files, folders of them, or - for a list of these on
standard input, one in a line. Images that are not JPEGs are read as the
converter reads them.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from data_prep.sources import imagenet_labels
from data_prep.sources.folders import EXTENSIONS
from eval import checkpoint_choice
from resnet.base import cli
from resnet.base.errors import EXIT_CODE, UserError
from resnet.base.output import print_result
from resnet.base.settings import COUNT, setting
from resnet.base.text import counted
from resnet.config.config import Config, load_config
from resnet.export import contents
from resnet.export.contents import Contents
from resnet.export.formats import ExportedNetwork, ExportedPredictor
from resnet.runtime import startup

if TYPE_CHECKING:  # They import TensorFlow.
    import tensorflow as tf

    from resnet.evaluation.predictor import Predictor


_MAX_CLASS = 20  # The width of a column.
_GAP = "  "
_PROBABILITY = "probability"


@dataclass(frozen=True)
class PredictSettings:
    """The network to predict with, and what is printed."""

    exported_model: str = setting(
        "",
        "An exported network to predict with, in place of a run: a SavedModel, or a"
        " network in the format keras, onnx, tflite or openvino.",
        unset="none",
    )
    step: int | None = setting(
        None,
        "Step of the checkpoint to predict with; unset, the newest one.",
        unset="the newest",
    )
    weights: str | None = setting(
        None,
        "Weights to predict with: raw, or ema (their exponential moving average). By"
        " default ema if the run has EMA weights, else raw.",
        names=("raw", "ema"),
        unset="`ema` if the run has it",
    )
    top_k: int | None = setting(
        None,
        "The number of classes per image; by default 5, or all if there are fewer. Of"
        " several labels an image, by default those with more than 50 %.",
        bounds=COUNT,
        unset="5",
    )
    batch_size: int = setting(
        32, "The number of images processed at a time.", bounds=COUNT
    )
    json: bool = setting(False, "Print a JSON object per image instead of a table.")


FLAGS: cli.Groups = (
    cli.Flags(
        Config, ("model_dir",), common=True, unset="this or the next is required"
    ),
    cli.Flags(PredictSettings, common=True),
)


@dataclass(frozen=True)
class Predicted:
    """A class and the probability, from 0 to 1, that an image shows it."""

    name: str
    description: str
    index: int  # The label, counted from 0.
    probability: float


class Table:
    """A line for each class of each image, within the width of a terminal."""

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], descriptions: Sequence[str]
    ) -> None:
        """Chooses the widths by all paths, class names, and descriptions, if any."""
        rest = most_name = sys.maxsize
        if sys.stdout.isatty():
            most_name = _MAX_CLASS
            rest = shutil.get_terminal_size().columns - len(_PROBABILITY) - len(_GAP)
        self._name = _width("class", names, most_name)
        rest -= self._name + len(_GAP)
        self._file = _width("image", paths, rest // 2 if descriptions else rest)
        rest -= self._file + len(_GAP)
        described = _width("description", descriptions, rest)
        self._description = described if descriptions else 0
        self._has_head = False

    def add(self, path: str, predicted: Sequence[Predicted]) -> None:
        """Prints the classes of an image, the most probable one first."""
        if not self._has_head:
            self._print("image", "class", "description", _PROBABILITY)
            self._has_head = True
        # The end of a path tells more than its start.
        shown = _start_of(_printable(path)[::-1], self._file)[::-1]
        for prediction in predicted:
            self._print(
                shown,
                _start_of(_printable(prediction.name), self._name),
                _start_of(_printable(prediction.description), self._description),
                f"{100 * prediction.probability:.2f} %",
            )
            shown = ""
        if not predicted:
            self._print(shown, "no label", "", "")

    def _print(self, file: str, name: str, description: str, last: str) -> None:
        columns = [file.ljust(self._file), name.ljust(self._name)]
        if self._description:
            columns.append(description.ljust(self._description))
        print_result(_GAP.join([*columns, last.rjust(len(_PROBABILITY))]))


class JsonLines:
    """One JSON object for each image, in a line of its own."""

    def add(self, path: str, predicted: Sequence[Predicted]) -> None:
        """Prints the classes of an image, the most probable one first."""
        predictions = []
        for prediction in predicted:
            values = dataclasses.asdict(prediction)
            if not prediction.description:
                del values["description"]
            predictions.append({"class": values.pop("name"), **values})
        print_result(json.dumps({"image": path, "predictions": predictions}))


def _width(title: str, values: Sequence[str], largest: int) -> int:
    return min(max(len(_printable(value)) for value in (title, *values)), largest)


def _printable(text: str) -> str:
    """Returns a text, quoted if it has characters that a terminal can't show."""
    return text if text.isprintable() else ascii(text)


def _start_of(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."[:width]


@dataclass(frozen=True)
class Network:
    """A network to predict with, which is loaded later."""

    name: str  # What it is, for messages.
    contents: Contents
    load: "Callable[[], Predictor | ExportedPredictor]"  # It imports TensorFlow.

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self.contents.class_names

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The descriptions; if it has none, those of ImageNet's classes, or nothing."""
        known = self.contents.class_descriptions
        return known or imagenet_labels.describe(self.class_names)


def main(argv: Sequence[str]) -> int:
    """Predicts as the flags say."""
    line = cli.parse(argv, __doc__, FLAGS, takes_arguments=True)
    settings, model_dir = line.of(PredictSettings), line.values["model_dir"]
    if not line.arguments:
        raise UserError("images are required: name files or folders, or - for a list.")
    if bool(model_dir) == bool(settings.exported_model):
        raise UserError(
            "exactly one of --model_dir and --exported_model must be given: the folder"
            f" of a run, or an exported network; got {'both' if model_dir else 'none'}."
        )
    if settings.exported_model:
        network = exported_network(settings)
    else:
        network = network_of_run(model_dir, settings)
    num_classes = len(network.class_names)
    if settings.top_k is not None and settings.top_k > num_classes:
        raise UserError(
            f"--top_k must be at most {num_classes}, the number of classes of"
            f" {network.name}; got {settings.top_k}."
        )
    problems: list[str] = []

    def report_problem(sentence: str) -> None:
        problems.append(sentence)
        print(f"error: {sentence}", file=sys.stderr, flush=True)

    paths = list(find_images(names_in(line.arguments), report_problem))
    if paths:
        predict_all(paths, network, settings, report_problem)
    elif not problems:
        raise UserError("standard input must name images; it is empty.")
    return EXIT_CODE if problems else 0


def exported_network(settings: PredictSettings) -> Network:
    """Returns the network that --exported_model names, or raises UserError."""
    for name in ("step", "weights"):
        if getattr(settings, name) is not None:
            raise UserError(
                f"--{name} is for --model_dir; an exported network has one set of"
                " weights. Leave it out."
            )
    exported = ExportedNetwork(pathlib.Path(settings.exported_model))
    name = f"the network in {settings.exported_model}"
    return Network(name, exported.contents, exported.load)


def network_of_run(model_dir: str, settings: PredictSettings) -> Network:
    """Returns the network of a run, as --step and --weights choose it."""
    config, folder = load_config(model_dir), pathlib.Path(model_dir)
    checkpoint_choice.require(settings.step, settings.weights, config, folder)

    def load() -> "Predictor":
        from resnet.checkpoint import restore
        from resnet.evaluation.predictor import Predictor

        trained = restore.load_network(config, folder, settings.step, settings.weights)
        return Predictor(trained.model, config)

    name = f"the network of the run in {model_dir}"
    return Network(name, contents.of_run(config), load)


def names_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, and in the place of - the lines of standard input."""
    for argument in arguments:
        if argument != "-":
            yield argument
            continue
        for line in sys.stdin.buffer:
            if name := os.fsdecode(line.rstrip(b"\r\n")):
                yield name


def find_images(
    names: Iterable[str], report_problem: Callable[[str], None]
) -> Iterator[str]:
    """Yields the paths of image files: those named, and those in the folders named.

    Folders are searched recursively, without links to others, in the order of the
    names, the files of a folder before its subfolders; hidden ones, and files without
    the extension of an image, are left out; these are counted on standard error. A file
    that is named may have any name.
    """
    num_ignored = 0

    def unreadable(error: OSError) -> None:
        report_problem(f"{error.filename} can't be read: {error.strerror}.")

    for name in names:
        if os.path.isdir(name):
            is_empty = True
            for folder, subfolders, files in os.walk(name, onerror=unreadable):
                subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
                visible = [file for file in sorted(files) if file[0] != "."]
                images = [f for f in visible if f.lower().endswith(EXTENSIONS)]
                num_ignored += len(visible) - len(images)
                is_empty &= not images
                yield from (os.path.join(folder, file) for file in images)
            if is_empty:
                extensions = " ".join(EXTENSIONS)
                report_problem(
                    f"{name} must contain images ({extensions}); found none."
                )
        elif os.path.lexists(name):
            yield name
        else:
            report_problem(
                f"{name} must be an image or a folder; there is no such file."
            )
    if num_ignored:
        number = counted(num_ignored, "file")
        print(f"ignored {number} without the extension of an image", file=sys.stderr)


def predict_all(
    paths: Sequence[str],
    network: Network,
    settings: PredictSettings,
    report_problem: Callable[[str], None],
) -> None:
    """Prints the predictions for images, at least one, batch by batch."""
    startup.start_alone()
    predictor = network.load()
    report: JsonLines | Table = JsonLines()
    if not settings.json:
        report = Table(paths, network.class_names, network.descriptions)
    for first in range(0, len(paths), settings.batch_size):
        batch = paths[first : first + settings.batch_size]
        images = read_images(batch, network, predictor, report_problem)
        for path, predicted in predict(predictor, images, network, settings.top_k):
            report.add(path, predicted)


def read_images(
    paths: Sequence[str],
    network: Network,
    predictor: "Predictor | ExportedPredictor",
    report_problem: Callable[[str], None],
) -> list[tuple[str, "tf.Tensor"]]:
    """Returns the paths of the images that can be read, each with its values."""
    encoding = network.contents.encoding

    def read(path: str) -> "tf.Tensor | str":
        try:
            return predictor.preprocess.of_file(path, encoding)
        except UserError as error:
            return str(error)

    images = []
    with (
        warnings.catch_warnings(),  # Of the process: threads can't restore it.
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        warnings.simplefilter("ignore")  # Of Pillow, about metadata.
        for path, image in zip(paths, pool.map(read, paths), strict=True):
            if isinstance(image, str):
                report_problem(image)
            else:
                images.append((path, image))
    return images


def predict(
    predictor: "Predictor | ExportedPredictor",
    images: Sequence[tuple[str, "tf.Tensor"]],
    network: Network,
    top_k: int | None,
) -> Iterator[tuple[str, list[Predicted]]]:
    """Yields the path of each image of `read_images` and its most probable classes."""
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
    names = network.class_names
    descriptions = network.descriptions or ("",) * len(names)
    best = top_classes(rows, top_k, network.contents.multi_label)
    for (path, _), row, indices in zip(images, rows, best, strict=True):
        yield (
            path,
            [
                Predicted(names[index], descriptions[index], index, float(row[index]))
                for index in indices.tolist()
            ],
        )


if __name__ == "__main__":
    sys.exit(program.run(main))
