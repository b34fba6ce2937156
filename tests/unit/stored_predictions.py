"""Predictions for tests: six images of three classes, two of them taken wrongly."""

import io

import numpy as np
from PIL import Image

from resnet.evaluation.prediction_file import Predictions, WrongImage


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(file, "JPEG")
    return file.getvalue()


def predictions(names=("a", "b", "c"), step: int = 20) -> Predictions:
    return Predictions(
        evaluated=f"step {step}",
        step=step,
        views="center",
        records_sha256="d" * 64,
        class_names=tuple(names),
        class_descriptions=(),
        examples=np.arange(6, dtype=np.int32),
        labels=np.array([0, 0, 1, 1, 2, 2], np.int32),
        top_classes=np.array(
            [[0, 1], [1, 0], [1, 2], [1, 0], [2, 0], [0, 2]], np.int32
        ),
        top_probabilities=np.array(
            [[0.9, 0.1], [0.6, 0.3], [0.8, 0.1], [0.7, 0.2], [1.0, 0.0], [0.5, 0.4]],
            np.float32,
        ),
        wrong_images=(WrongImage(1, "one.jpg", jpeg()), WrongImage(5, "", jpeg())),
    )
