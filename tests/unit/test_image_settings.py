"""The normalization of images and the initial weights, as settings of recipes."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.config.phases import AUGMENTATIONS
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.models import alexnet
from resnet.optim.train_state import TrainState
from tests.unit.seen_images import jpeg, noise, seed, trained

OTHER = Normalization((0.5, 0.25, 0.1), (0.2, 0.4, 0.5))


def pixels_of(image: tf.Tensor, normalization: Normalization) -> np.ndarray:
    return image.numpy() * normalization.stddev + normalization.mean


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_training_images_have_the_mean_and_deviation_that_are_given(augmentation):
    arguments = (tf.constant(noise(48, 40)), 32, augmentation, seed(3, 4))
    usual = trained(*arguments).numpy()
    ours = trained(*arguments, OTHER)
    seen = abs(usual) > 1e-6  # Padding and cutout are zeros after normalization.
    assert seen.mean() > 0.5
    expected = usual * preprocessing.STDDEV + preprocessing.MEAN
    np.testing.assert_allclose(
        pixels_of(ours, OTHER)[seen], expected[seen], rtol=0, atol=1e-5
    )
    assert not ours.numpy()[~seen].any()


@pytest.mark.parametrize("crop", ["crop_then_resize", "resize_then_crop", "five"])
def test_images_of_evaluation_have_them_too(crop):
    original = jpeg(noise(48, 40))

    def image(*normalization: Normalization) -> tf.Tensor:
        if crop == "five":
            return preprocessing.five_crops(original, 32, 0.875, *normalization)
        return preprocessing.eval_image(original, 32, 0.875, crop, *normalization)

    np.testing.assert_allclose(
        pixels_of(image(OTHER), OTHER),
        pixels_of(image(), preprocessing.IMAGENET),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["resnet8", "alexnet_bn"])
def test_pytorchs_weights_are_uniform_within_the_inverse_root_of_the_inputs(
    name, monkeypatch
):
    monkeypatch.setattr(alexnet, "DENSE_UNITS", 256)  # 4096 take a second.
    model = models.build(name, 10, 32, seed=1, initialization="pytorch")
    layers = [layer for layer in model.layers if hasattr(layer, "kernel")]
    for layer in layers:
        limit = math.prod(layer.kernel.shape[:-1]) ** -0.5
        values = layer.kernel.numpy()
        assert np.abs(values).max() <= limit
        # Of a uniform distribution; at least 432 draws.
        assert values.std() == pytest.approx(limit / 3**0.5, rel=0.1)
        assert abs(values.mean()) < 0.1 * limit
        if getattr(layer, "bias", None) is not None:
            assert 0 < np.abs(layer.bias.numpy()).max() <= limit
        if hasattr(layer, "gamma"):
            assert set(layer.gamma.numpy()) <= {0.0, 1.0}
            assert not layer.beta.numpy().any()


def test_batch_normalization_decays_where_the_recipe_says_so(make_config):
    config = make_config(model="resnet8")
    for decays in (False, True):
        state = TrainState(dataclasses.replace(config, decay_batch_norm=decays))
        found = dict(zip(state.names, state.optimizer.decays, strict=True))
        for name, is_decayed in found.items():
            is_of_batch_norm = name.endswith(("/gamma", "/beta"))
            assert is_decayed == (decays or not is_of_batch_norm), name
