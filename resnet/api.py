"""Networks, record sets, evaluation and prediction from Python: what `resnet` offers.

Numbers are those of eval/resnet_eval.py and eval/predict.py. Mistakes raise
`resnet.UserError`. TensorFlow is imported when a network is made.
"""

import contextlib
import dataclasses
import functools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.records.manifest import RecordSet
from resnet.base import commands, names
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.checkpoint import step_dirs
from resnet.config import recipe_file
from resnet.config.config import Config, load_config
from resnet.config.networks import MODELS
from resnet.config.recipes import imagenet
from resnet.config.resolve import resolve
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.export import contents
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.runtime import startup
from resnet.runtime.job import Job

if TYPE_CHECKING:  # They import TensorFlow.
    import keras
    import tensorflow as tf

    from resnet.evaluation.evaluator import Result
    from resnet.evaluation.predictor import Predictor

Image = str | os.PathLike[str] | np.ndarray


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
    """Turns kinds of UserError, and what ranks agree on, into UserError itself."""
    try:
        yield
    except (UserError, AgreedFailure) as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True)
class Prediction:
    """A class, or one of several labels, that a network predicts for an image."""

    class_name: str
    label: int  # The number of the class, from 0.
    probability: float


@dataclass(frozen=True)
class Records:
    """A data set of records: its manifest and folders."""

    record_set: RecordSet

    def __repr__(self) -> str:
        counts = [f"{count:,} {name}" for name, count in self.num_examples.items()]
        name, num_classes = self.record_set.records_dir.name, len(self.class_names)
        return f"<{name}: {' and '.join(counts)} images, {num_classes:,} classes>"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self.record_set.manifest.class_names

    @property
    def num_examples(self) -> dict[str, int]:
        """The number of examples of each split, such as "train"."""
        splits = self.record_set.manifest.splits
        return {name: split.num_examples for name, split in splits.items()}


class Network:
    """A network with its weights, as `load` and `build` make it.

    Attributes:
        model: The Keras model, from normalized images `[batch, size, size, 3]` float32
            to logits.
        config: The settings of the network and of evaluation, among others.
        step: The steps that the network was trained for.
        weights: What the weights are, such as "random".
        is_trained: Whether all weights are those of a training, also the classifier's.
    """

    def __init__(
        self,
        model: "keras.Model",
        config: Config,
        step: int,
        weights: str,
        is_trained: bool = True,
    ) -> None:
        self.model, self.config = model, config
        self.step, self.weights, self.is_trained = step, weights, is_trained
        self._contents = contents.of_run(config)

    @functools.cached_property
    def _predictor(self) -> "Predictor":
        from resnet.evaluation.predictor import Predictor

        return Predictor(self.model, self.config)

    def __repr__(self) -> str:
        shape = f"{self.config.num_classes} classes, {self.config.image_size} px"
        return f"<{self.config.model}: {shape}, weights {self.weights}>"

    @property
    def limits(self) -> tuple[str, ...]:
        """What the network can't do, in a sentence each."""
        config = self.config
        limits = [
            "Keras can't load what model.save writes, since the layers are of this"
            f" project; {commands.command('resnet-export')} writes a run's network in"
            " stock layers."
        ]
        if MODELS[config.model].has_one_image_size:
            limits.append(f"`model` takes images of {config.image_size} px only.")
        if not self.is_trained:
            limits.append(f"It can't tell classes apart, with weights {self.weights}.")
        if MODELS[config.model].has_image_statistics and not self.is_trained:
            limits.append("Its first layer is 0 until a run computes it from images.")
        if config.recalibration_batches:
            limits.append("`evaluate` can't recalibrate, as the run's evaluation does.")
        return tuple(limits)

    @_user_errors()
    def evaluate(
        self, records: Records, split: str = "validation", batch_size: int = 200
    ) -> "Result":
        """Returns the accuracy on all examples of a split, each counted once.

        Each image is seen in the views of the run's recipe (`eval_views`).

        The result has `top1` and `top5` as fractions, `loss`, `cross_entropy` and
        `count`, and in `by_class` the `recall`, `precision` and `f1` of each class, as
        eval/resnet_eval.py reports them with --recalibration_batches=0. With several
        labels an image, it has `by_label` with `mean_average_precision` instead.

        Raises:
            UserError: If the set has other classes, no such split, or corrupt records,
                or the network predicts NaN or infinity.
        """
        from resnet.evaluation.evaluator import Evaluator
        from resnet.optim.optimizer import weight_penalty

        record_sets.check_fits(records.record_set, self.config, "the network")
        if split not in records.num_examples:
            raise UserError(names.unknown("split", split, records.num_examples))
        _require_positive("batch_size", batch_size)
        alone = Communicator(ProcessInfo())
        config = dataclasses.replace(
            self.config, eval_batch_size=batch_size, num_parallel_calls=0
        )
        shards = startup.check_shards(records.record_set, [split], "example", alone)
        own = config.class_names
        shard = startup.open_shards(records.record_set, shards, alone, own)[split]
        threads = Threads(tuple(os.sched_getaffinity(0)), 0, 0)
        evaluator = Evaluator(self.model, shard, config, Job(alone, threads))
        return evaluator.evaluate(weight_penalty(self.model, config, self.step))

    def predict(
        self, images: Iterable[Image], top_k: int | None = None, batch_size: int = 32
    ) -> list[list[Prediction]]:
        """Returns the most probable classes of each image, the best first.

        With several labels an image, they are the labels, each with a probability of
        its own.

        Args:
            images: Paths of image files, or images of any size as arrays `[height,
                width, 3]` uint8 with red, green and blue.
            top_k: The number of classes per image; all if there are fewer. None for 5
                or, of several labels, those with a probability above 0.5.

        Raises:
            UserError: If an image can't be read, or the network predicts NaN.
        """
        from resnet.evaluation.predictor import top_classes

        if top_k is not None:
            _require_positive("top_k", top_k)
        class_names = self.config.class_names
        rows = self.probabilities(images, batch_size)
        best = top_classes(rows, top_k, self.config.multi_label)
        return [
            [Prediction(class_names[k], k, float(row[k])) for k in indices.tolist()]
            for row, indices in zip(rows, best, strict=True)
        ]

    def probabilities(
        self, images: Iterable[Image], batch_size: int = 32
    ) -> np.ndarray:
        """Returns the probabilities of all classes, `[images, num_classes]` float32.

        The arguments and errors are those of `predict`.
        """
        import tensorflow as tf

        if isinstance(images, (str, os.PathLike)):
            raise UserError(f"images must be a list of images; got {images!r} alone.")
        _require_positive("batch_size", batch_size)
        listed = list(images)
        rows = np.zeros((len(listed), self.config.num_classes), np.float32)
        for first in range(0, len(listed), batch_size):
            of_batch = slice(first, first + batch_size)
            batch = tf.stack(list(map(self._preprocessed, listed[of_batch])))
            rows[of_batch] = self._predictor.probabilities(batch)
        if not np.isfinite(rows).all():
            raise UserError(
                f"{self!r} predicts NaN or infinity, so its training has diverged. Load"
                " an earlier checkpoint (step=...)."
            )
        return rows

    def _preprocessed(self, image: Image) -> "tf.Tensor":
        """Returns an image as the network takes it, `[size, size, 3]` float32."""
        import tensorflow as tf

        preprocess = self._predictor.preprocess
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise UserError(
                    "an image must be an array [height, width, 3] of uint8; got"
                    f" {list(image.shape)} of {image.dtype}."
                )
            return preprocess.of_pixels(tf.constant(image))
        return preprocess.of_file(image, self._contents.encoding)


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be at least 1; got {value}.")


def network_names() -> tuple[str, ...]:
    """Returns the names of the networks that `build` makes."""
    return tuple(MODELS)


@_user_errors()
def open_records(data_dir: str | os.PathLike[str]) -> Records:
    """Returns the record set in a folder.

    One that TensorFlow Datasets or the TPU scripts wrote is indexed first.
    """
    alone = ProcessInfo(), Communicator(ProcessInfo())
    return Records(record_sets.open_record_set(str(data_dir), None, *alone))


@_user_errors()
def load(
    path: str | os.PathLike[str], step: int | None = None, weights: str | None = None
) -> Network:
    """Returns the network of a run, with the weights of one of its checkpoints.

    Args:
        path: The folder of the run (--model_dir), or of one of its checkpoints.
        step: The step of the checkpoint in the folder of a run; None for the newest.
        weights: "raw", or "ema" for the exponential moving average of the weights; None
            for "ema" if the run has it.

    Raises:
        UserError: If there is no such run, checkpoint or weights.
    """
    folder = Path(path)
    if step_dirs.is_checkpoint(folder) and step_dirs.step_of(folder) is not None:
        if step is not None:
            raise UserError(
                f"step is for the folder of a run, but {path} is one checkpoint; got"
                f" step={step}. Leave it out."
            )
        step, folder = step_dirs.step_of(folder), folder.absolute().parents[1]
    config = load_config(str(folder))
    if weights not in (None, "raw", "ema"):
        raise UserError(f"weights must be raw or ema; got {weights!r}.")
    if weights == "ema" and not config.ema_decay:
        raise UserError(f"the run in {folder} has no EMA weights. Leave weights out.")
    startup.import_tensorflow()
    from resnet.checkpoint import restore

    saved = restore.load_network(config, folder, step, weights)
    described = f"{saved.weights} of step {saved.step}"
    return Network(saved.model, config, saved.step, described)


@_user_errors()
def build(
    name: str,
    classes: int | Sequence[str] = 1000,
    weights: str | os.PathLike[str] | None = None,
    recipe: str = imagenet.TPU_90EP_24K.name,
    **settings: Any,
) -> Network:
    """Returns a network by a name of `network_names()`.

    Args:
        classes: The names of the classes, such as those of a `Records`, or how many.
        weights: What --initial_weights takes: a run's folder, a checkpoint, a file of
            weights such as torchvision's, or a TensorFlow checkpoint of the TPU recipe;
            None for random weights.
        recipe: The recipe whose settings of the network and of evaluation it has.
        settings: Settings that are to be other ones, by the names in `config.json`,
            such as resnet_variant="torchvision", image_size=128 or seed=1.

    Raises:
        UserError: If there is no such network, or the weights aren't its weights.
        TypeError: If there is no such setting.
    """
    if name not in MODELS:
        listing = "resnet.network_names()"
        raise UserError(names.unknown("the network", name, MODELS, listing))
    class_names = _class_names(classes)
    chosen = recipe_file.get(recipe)
    if chosen.model != name:
        settings.setdefault("image_size", MODELS[name].image_size)
    if weights is not None:
        settings["initial_weights"] = str(weights)
    config = resolve(
        chosen, {"model": name, **settings}, chosen.num_train_examples, class_names
    )
    startup.import_tensorflow()
    from resnet.checkpoint import restore
    from resnet.optim.train_state import build_model
    from resnet.runtime import precision

    if config.precision == "auto":
        measured = precision.choose("auto", Communicator(ProcessInfo()))
        config = dataclasses.replace(config, precision=measured)
    model = build_model(config)
    if weights is None:
        return Network(model, config, 0, "random", is_trained=False)
    is_whole = restore.assign_initial_weights(model, config)
    described = f"of {weights}{'' if is_whole else ' and a new classifier'}"
    return Network(model, config, 0, described, is_whole)


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of classes, which are numbers if only their count is known."""
    try:
        known: Iterable[object] = range(operator.index(classes))  # type: ignore[arg-type]
    except TypeError:  # It is no count.
        known = classes  # type: ignore[assignment]
    if not (names := tuple(normalized(str(name)) for name in known)):
        raise UserError(
            f"classes must be the names of the classes, or how many, at least 1; got"
            f" {classes!r}."
        )
    return names
