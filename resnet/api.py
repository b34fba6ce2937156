"""Networks, record sets, evaluation and prediction from Python, as the programs do.

Numbers are those of eval/resnet_eval.py and eval/predict.py, in one process. Mistakes
raise `data_prep.errors.UserError`, whose text is one sentence. TensorFlow is imported
when a network is made.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import image_file
from data_prep.errors import UserError
from data_prep.records.manifest import RecordSet
from resnet.checkpoint import step_dirs
from resnet.config.config import Config, load_config
from resnet.config.resolve import resolve
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.export import contents
from resnet.hardware.placement import ProcessInfo
from resnet.models import names
from resnet.recipes import imagenet, json_file
from resnet.runtime import startup

if TYPE_CHECKING:  # They import TensorFlow.
    import keras
    import tensorflow as tf

    from resnet.evaluation.evaluator import Result

Image = str | os.PathLike[str] | np.ndarray


@dataclass(frozen=True)
class Prediction:
    """A class that a network predicts for an image.

    Attributes:
        class_name: The name of the class.
        label: The number of the class, from 0.
        probability: The probability, from 0 to 1.
    """

    class_name: str
    label: int
    probability: float


@dataclass(frozen=True)
class Records:
    """A data set of records.

    Attributes:
        record_set: The manifest and the folders of the set.
    """

    record_set: RecordSet

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
        config: The settings, of which those of the network and of evaluation count.
        step: The number of steps that the network was trained for; 0 for none.
        weights: What the weights are, such as "random".
    """

    def __init__(
        self, model: "keras.Model", config: Config, step: int, weights: str
    ) -> None:
        from resnet.evaluation.predictor import Predictor

        self.model = model
        self.config = config
        self.step = step
        self.weights = weights
        self._predictor = Predictor(model, config)
        training_set = contents.training_set(config)
        self._set_format = training_set.image_format if training_set else None

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<{config.model} for {config.num_classes} classes and images of"
            f" {config.image_size} px; weights: {self.weights}>"
        )

    @property
    def limits(self) -> tuple[str, ...]:
        """What the network can't do, in a sentence each."""
        config = self.config
        found = [
            "It can't be saved by model.save or converted from Keras, since its layers"
            " are of this project: eval/export.py writes networks of stock layers.",
        ]
        if config.model in ("alexnet", "mlp"):
            found.append(
                f"It takes images of {config.image_size} px only, as it ends in a layer"
                " that depends on the size."
            )
        if self.weights == "random" or "new classifier" in self.weights:
            found.append(f"It can't tell classes apart yet: weights: {self.weights}.")
        if config.recalibration_batches:
            found.append(
                "It is evaluated with the saved statistics of batch normalization, as"
                " eval/resnet_eval.py --recalibration_batches=0 does."
            )
        return tuple(found)

    def evaluate(
        self, records: Records, split: str = "validation", batch_size: int = 200
    ) -> "Result":
        """Returns the accuracy on all examples of a split, each counted once.

        Args:
            records: The data set, with the classes of the network.
            split: The name of the split, such as "validation".
            batch_size: The number of images computed at a time.

        Returns:
            The result, with `top1` and `top5` as fractions, `loss`, `cross_entropy` and
            `count`, as eval/resnet_eval.py reports it.

        Raises:
            UserError: If the data set has other classes, lacks the split, or has a
                corrupt record.
        """
        from resnet.evaluation.evaluator import Evaluator
        from resnet.train_state import decayed_variables, weight_penalty

        if records.class_names != self.config.class_names:
            raise UserError(
                "the data set must have the classes of the network, which has"
                f" {self.config.num_classes} ({self.config.class_names[0]}, ...); got"
                f" {len(records.class_names)} ({records.class_names[0]}, ...)."
            )
        if split not in records.num_examples:
            raise UserError(
                f"split must be one of {', '.join(records.num_examples)}; got {split!r}"
            )
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1; got {batch_size}.")
        alone = Communicator(ProcessInfo())
        config = dataclasses.replace(self.config, eval_batch_size=batch_size)
        shards = startup.check_shards(records.record_set, [split], "example", alone)
        shard = startup.open_shards(records.record_set, shards, alone)[split]
        num_parallel_calls = len(os.sched_getaffinity(0))
        evaluator = Evaluator(self.model, shard, config, alone, num_parallel_calls)
        decayed = decayed_variables(self.model, config)
        return evaluator.evaluate(weight_penalty(decayed, config, self.step))

    def predict(
        self, images: Iterable[Image], top_k: int = 5, batch_size: int = 32
    ) -> list[list[Prediction]]:
        """Returns the most probable classes of each image, the best first.

        Args:
            images: Paths of image files, or images of any size as arrays `[height,
                width, 3]` uint8 with red, green and blue.
            top_k: The number of classes per image; all if there are fewer.
            batch_size: The number of images computed at a time.

        Raises:
            UserError: If an image can't be read, or the network predicts NaN.
        """
        from resnet.evaluation.predictor import top_classes

        if top_k < 1:
            raise UserError(f"top_k must be at least 1; got {top_k}.")
        class_names = self.config.class_names
        rows = self.probabilities(images, batch_size)
        best = top_classes(rows, min(top_k, len(class_names)))
        return [
            [Prediction(class_names[k], k, float(row[k])) for k in indices.tolist()]
            for row, indices in zip(rows, best, strict=True)
        ]

    def probabilities(
        self, images: Iterable[Image], batch_size: int = 32
    ) -> np.ndarray:
        """Returns the probabilities of all classes, `[images, num_classes]` float32.

        Args:
            images: As `predict` takes them.
            batch_size: The number of images computed at a time.

        Raises:
            UserError: As `predict` does.
        """
        import tensorflow as tf

        if isinstance(images, (str, os.PathLike)):
            raise UserError(f"images must be a list of images; got {images!r} alone.")
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1; got {batch_size}.")
        found = list(images)
        rows = np.zeros((len(found), self.config.num_classes), np.float32)
        for first in range(0, len(found), batch_size):
            batch = [self._preprocessed(one) for one in found[first:][:batch_size]]
            probabilities = self._predictor.probabilities(tf.stack(batch))
            rows[first : first + batch_size] = probabilities
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
        try:
            return preprocess(*image_file.read(image, self._set_format))
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].rstrip(".")
            raise UserError(
                f"{image} can't be decoded as an image: {reason}."
            ) from error


def network_names() -> tuple[str, ...]:
    """Returns the names of the networks that `build` makes."""
    return names.MODELS


def open_records(data_dir: str | os.PathLike[str]) -> Records:
    """Returns the record set in a folder; indexes it first if another program wrote it.

    Args:
        data_dir: The folder of a converted data set, or of one that TensorFlow Datasets
            or the TPU scripts wrote; with a split "validation".

    Raises:
        UserError: If the folder holds no such set.
    """
    process = ProcessInfo()
    alone = Communicator(process)
    return Records(
        record_sets.open_record_set(str(data_dir), "validation", process, alone)
    )


def load(
    path: str | os.PathLike[str], step: int | None = None, weights: str | None = None
) -> Network:
    """Returns the network of a run, with the weights of one of its checkpoints.

    Args:
        path: The folder of the run (--model_dir), or of one of its checkpoints.
        step: The step of the checkpoint in a run's folder; None for the newest.
        weights: "raw", or "ema" for the exponential moving average of the weights; None
            for "ema" if the run has it.

    Raises:
        UserError: If there is no such run, checkpoint or weights.
    """
    folder = Path(path)
    if step_dirs.is_checkpoint(folder) and step_dirs.step_of(folder) is not None:
        step, folder = step_dirs.step_of(folder), folder.absolute().parents[1]
    config = load_config(str(folder))
    if weights not in (None, "raw", "ema"):
        raise UserError(f"weights must be raw or ema; got {weights!r}.")
    if weights == "ema" and not config.ema_decay:
        raise UserError(f"the run in {folder} has no EMA weights. Leave weights out.")
    startup.import_tensorflow()
    from resnet.checkpoint import trained_network

    found = trained_network.load(config, folder, step, weights)
    described = f"{found.weights} of step {found.step} in {folder}"
    return Network(found.model, config, found.step, described)


def build(
    name: str,
    classes: int | Sequence[str] = 1000,
    weights: str | os.PathLike[str] | None = None,
    recipe: str = imagenet.TPU_90EP_24K.name,
    **settings: Any,
) -> Network:
    """Returns a network by name.

    Args:
        name: The name, one of `network_names()`.
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
    if name not in names.MODELS:
        raise UserError(
            f"expected a network among {', '.join(names.MODELS)}; got {name!r}"
        )
    every = range(classes) if isinstance(classes, int) else classes
    class_names = tuple(map(str, every))
    chosen = json_file.get(recipe)
    if chosen.model != name:
        settings.setdefault("image_size", names.default_image_size(name))
    if weights is not None:
        settings["initial_weights"] = str(weights)
    config = resolve(
        chosen, {"model": name, **settings}, chosen.num_train_examples, class_names
    )
    startup.import_tensorflow()
    from resnet.checkpoint import restore
    from resnet.train_state import build_model

    model = build_model(config)
    if weights is None:
        return Network(model, config, 0, "random")
    is_whole = restore.assign_initial_weights(model, config)
    described = f"{weights}{'' if is_whole else ' with a new classifier'}"
    return Network(model, config, 0, described)
