"""The predictions of an exported network for single images."""

from resnet.data.augmentation import preprocessing
from resnet.evaluation.predictor import Preprocessor
from resnet.export.exported_network import ExportedNetwork


class ExportedPredictor:
    """Computes the class probabilities of encoded images with an exported network.

    Attributes:
        preprocess: A function from a file to an image as the network takes it.
        probabilities: A function from such images, `[batch, size, size, 3]` float32, to
            the probabilities of the classes, `[batch, num_classes]` float32.
    """

    def __init__(self, exported: ExportedNetwork) -> None:
        """Loads the network.

        Raises:
            UserError: If it can't be loaded.
        """
        self.preprocess = Preprocessor(
            exported.contents.image_size,
            exported.contents.crop_fraction,
            exported.contents.crop,
            preprocessing.NOT_NORMALIZED,
        )
        self.probabilities = exported.load()
