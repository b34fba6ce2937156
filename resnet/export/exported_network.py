"""Reads exported networks, to predict with them.

Importing it, and reading the description of a network, imports no TensorFlow.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resnet.base.errors import UserError, naming_failures
from resnet.export import contents, formats
from resnet.export.contents import Probabilities

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.evaluation.predictor import Preprocessor


class ExportedPredictor(NamedTuple):
    """What `evaluation.predictor.Predictor` does, with an exported network."""

    preprocess: "Preprocessor"
    probabilities: Probabilities


class ExportedNetwork:
    """A network that `formats.write` has written, with its description, `contents`."""

    def __init__(self, path: Path) -> None:
        """Reads the description of a network in a file or folder.

        Raises UserError if it isn't such a network, or needs a package that is missing.
        """
        self._path = path
        self._format = formats.format_of(path)
        with naming_failures(f"reading {path}"):
            text = self._format.description(path)
        self.contents = contents.from_text(text, str(path))

    def load(self) -> ExportedPredictor:
        """Loads the network, or raises UserError. Imports TensorFlow."""
        from resnet.data.augmentation import preprocessing
        from resnet.evaluation.predictor import Preprocessor

        assert self._format.load is not None  # noqa: S101 - As `format_of` promises.
        try:
            probabilities = self._format.load(self._path)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{self._path} can't be loaded: {reason[0]}") from error
        described = self.contents
        preprocess = Preprocessor(
            described.image_size,
            described.crop_fraction,
            described.crop,
            preprocessing.NOT_NORMALIZED,
        )
        return ExportedPredictor(preprocess, probabilities)
