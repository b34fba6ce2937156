"""Stores what a network predicts for each validation image, for the report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from eval.evaluation_report import Evaluated
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation import prediction_file, wrong_images
from resnet.evaluation.prediction_file import Predictions, WrongImage
from resnet.evaluation.top_classes import Block, TopClasses


@dataclass(frozen=True, eq=False)
class PredictionStore:
    """Writes the predictions of evaluations to the folder of the run.

    Attributes:
        model_dir: The folder of the run.
        views: The test-time augmentation.
        records: The validation examples that this rank reads.
        class_names: The names of the classes.
        class_descriptions: Words for them; empty if there are none.
        communicator: The ranks.
    """

    model_dir: Path
    views: str
    records: RecordFiles
    class_names: Sequence[str]
    class_descriptions: Sequence[str]
    communicator: Communicator

    def write(self, what: Evaluated, top: TopClasses) -> None:
        """Writes the predictions of all ranks, on rank 0; each rank must call it.

        Args:
            what: What was evaluated.
            top: The predictions of this rank.

        Raises:
            AgreedError: On all ranks, if the file can't be written.
        """
        own, whole = top.of_rank(), top.of_all(self.communicator)
        images = wrong_images.of_all(own, whole, self.records, self.communicator)
        with self.communicator.collective_errors():
            if self.communicator.rank == 0:
                self._write(what, whole, images)

    def _write(
        self, what: Evaluated, whole: Block, images: Sequence[WrongImage]
    ) -> None:
        predictions = Predictions(
            evaluated=str(what),
            step=what.steps[-1],
            views=self.views,
            class_names=tuple(self.class_names),
            class_descriptions=tuple(self.class_descriptions),
            examples=whole.examples,
            labels=whole.labels,
            top_classes=whole.classes,
            top_probabilities=whole.probabilities,
            wrong_images=tuple(images),
        )
        # Other views are another evaluation, whose file doesn't replace this one.
        suffix = "" if self.views == "center" else f"-{self.views}"
        path = prediction_file.write(
            self.model_dir, what.file_name + suffix, predictions
        )
        logging.info("The predictions are in %s", path)
