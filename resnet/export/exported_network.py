"""Reads exported networks, to predict with them.

Importing it, and reading the description of a network, imports no TensorFlow.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from resnet.base.errors import UserError, naming_failures
from resnet.export import contents, formats
from resnet.export.contents import Contents, Probabilities

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.evaluation.predictor import Preprocessor


class ExportedNetwork:
    """A network that `formats.write` has written.

    Attributes:
        contents: Its description.
    """

    def __init__(self, path: Path) -> None:
        """Reads the description of a network in a file or folder.

        Raises:
            UserError: If it isn't such a network, or needs a package that is missing.
        """
        self._path = path
        self._format = formats.format_of(path)
        with naming_failures(f"reading {path}"):
            text = self._format.description(path)
        self.contents: Contents = contents.from_text(text, str(path))

    def load(self) -> Probabilities:
        """Returns the function that computes the network (`Format.load`).

        Raises:
            UserError: If the network can't be loaded.
        """
        assert self._format.load is not None  # noqa: S101 - As `format_of` promises.
        try:
            return self._format.load(self._path)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{self._path} can't be loaded: {reason[0]}") from error


class ExportedPredictor:
    """Computes the class probabilities of encoded images with an exported network.

    Attributes:
        preprocess: A function from a file to an image as the network takes it.
        probabilities: A function from such images, `[batch, size, size, 3]` float32, to
            the probabilities of the classes, `[batch, num_classes]` float32.
    """

    preprocess: "Preprocessor"
    probabilities: Probabilities

    def __init__(self, exported: ExportedNetwork) -> None:
        """Loads the network. Imports TensorFlow.

        Raises:
            UserError: If it can't be loaded.
        """
        from resnet.data.augmentation import preprocessing
        from resnet.evaluation.predictor import Preprocessor

        self.preprocess = Preprocessor(
            exported.contents.image_size,
            exported.contents.crop_fraction,
            exported.contents.crop,
            preprocessing.NOT_NORMALIZED,
        )
        self.probabilities = exported.load()
