import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet.config.recipe import VIEWS
from resnet.evaluation import test_time_augmentation

NUM_CLASSES = 7


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """A matrix on all pixels, so that a mirror image is another one."""
    inputs = keras.Input((4, 5, 3))
    logits = keras.layers.Dense(NUM_CLASSES)(keras.layers.Flatten()(inputs))
    made = keras.Model(inputs, logits)
    generator = np.random.default_rng(3)
    for variable in made.variables:
        variable.assign(generator.normal(size=variable.shape))
    return made


def logits_of(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """The network in NumPy, of images of any leading shape."""
    kernel, bias = (one.numpy().astype(np.float64) for one in model.variables)
    return images.reshape(*images.shape[:-3], -1) @ kernel + bias


def test_the_center_is_what_the_network_says_to_the_bit(model):
    images = tf.random.stateless_normal([3, 4, 5, 3], (1, 2))
    ours = test_time_augmentation.predict(model, images, "center")
    np.testing.assert_array_equal(ours, model(images, training=False))


@pytest.mark.parametrize("views", ["flip", "five_crops", "ten_crops"])
def test_several_views_are_the_mean_of_their_probabilities(model, views):
    crops = VIEWS[views].num_crops
    images = np.random.default_rng(1).normal(size=(3, crops, 4, 5, 3))
    given = images[:, 0] if views == "flip" else images
    ours = test_time_augmentation.predict(model, tf.constant(given, tf.float32), views)
    seen = images
    if views != "five_crops":
        seen = np.concatenate([images, images[:, :, :, ::-1]], axis=1)
    assert seen.shape[1] == test_time_augmentation.num_views(views)
    expected = softmax(logits_of(model, seen)).mean(1)
    # Logits of up to some 20 in float32, whose rounding is a factor of the result.
    np.testing.assert_allclose(np.exp(ours), expected, rtol=1e-4)
    np.testing.assert_allclose(tf.nn.softmax(ours), expected, rtol=1e-4)


@pytest.mark.parametrize("views", ["flip_and_shift", "flip_then_shift"])
def test_shifted_images_have_half_the_weight(model, views):
    images = np.random.default_rng(1).normal(size=(30, 4, 5, 3))
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    shifted = padded[:, :4, :5], padded[:, 2:, 2:]

    def mean_of(*views: np.ndarray) -> np.ndarray:
        seen = [turned for one in views for turned in (one, one[:, :, ::-1])]
        return np.mean([softmax(logits_of(model, one)) for one in seen], axis=0)

    # Its two shifts and their flips are seen at a time.
    assert test_time_augmentation.num_views(views) == 4
    of_flips = mean_of(images)
    expected = (of_flips + mean_of(*shifted)) / 2
    if views == "flip_then_shift":
        ordered = np.sort(of_flips)
        is_certain = ordered[:, -1] - ordered[:, -2] >= VIEWS[views].shift_below
        assert 1 < is_certain.sum() < 29
        expected[is_certain] = of_flips[is_certain]
    ours = test_time_augmentation.predict(model, tf.constant(images, tf.float32), views)
    np.testing.assert_allclose(np.exp(ours), expected, rtol=1e-4)


def test_without_uncertain_images_no_shifts_are_processed(model):
    images = tf.ones([3, 4, 5, 3])
    flips, both = (
        test_time_augmentation.predict(model, 50 * images, views)
        for views in ("flip", "flip_then_shift")
    )
    np.testing.assert_array_equal(flips, both)


def test_the_mean_keeps_logarithms_of_tiny_probabilities_and_nan():
    logits = tf.constant([[[0.0, 300.0], [0.0, 400.0]], [[0.0, 1.0], [np.nan, 1.0]]])
    ours = test_time_augmentation.log_mean_probabilities(logits).numpy()
    # Half of exp(-300), and nearly 1.
    np.testing.assert_allclose(ours[0], [-300 - np.log(2), 0], rtol=1e-6, atol=1e-6)
    assert np.isnan(ours[1]).all()
