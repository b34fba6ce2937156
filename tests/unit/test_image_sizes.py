"""A network takes images of other sizes than that it was built for."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.models import resnet
from tests.reference.networks import random_images

# Both stems and all pools, with a smaller or a larger side.
SIDES = {"resnet9": 40, "resnet18": 96, "resnet50d": 48}
BUILT_FOR = 64
# Of each kind and stride: a block with a projection, and one without.
BLOCKS = {18: ((2, 1, 1, 1), False), 50: ((2, 1, 1, 1), True)}


@functools.cache
def build(name: str, image_size: int) -> keras.Model:
    """Returns one whose weights don't depend on the size, and are not the first ones.

    Its moving averages move when it is called in training.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "DEPTHS", BLOCKS)
        patch.setattr(resnet, "STAGE_FILTERS", (16, 32, 64, 128))
        model = models.build(name, 5, image_size, seed=3)
    generator = np.random.default_rng(5)
    for one in model.trainable_variables:
        if one.path.endswith("/gamma"):
            one.assign(generator.uniform(0.5, 1.0, one.shape))
        elif one.path.endswith(("/beta", "/bias")):
            one.assign(generator.normal(0, 0.1, one.shape))
    return model


def start_averages(model: keras.Model) -> None:
    generator = np.random.default_rng(6)
    for one in model.non_trainable_variables:
        one.assign(generator.uniform(0.5, 1.0, one.shape))


@pytest.mark.parametrize(("name", "side"), SIDES.items())
def test_it_computes_what_a_network_built_for_the_size_does(name, side):
    found = []
    for image_size in (BUILT_FOR, side):
        model = build(name, image_size)
        start_averages(model)
        evaluated = model(random_images(2, side), training=False)
        variables = [one.value for one in model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = model(random_images(2, side), training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits([3, 1], logits)
        averages = [one.numpy() for one in model.non_trainable_variables]
        found.append([evaluated, logits, *tape.gradient(loss, variables), *averages])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_images_without_three_channels_are_refused():
    with pytest.raises(ValueError, match=r"found shape=\(1, 48, 48, 4\)"):
        build("resnet9", BUILT_FOR)(tf.zeros([1, 48, 48, 4]))
