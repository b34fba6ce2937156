import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.models import flops
from tests.unit.reference_network import relative_difference

SHAPES = {"dense1": (784, 128), "dense2": (128, 64), "classifier": (64, 10)}


def build(**given) -> keras.Model:
    model = models.build("mlp", 10, 28, seed=1, **given)
    generator = np.random.default_rng(5)
    for one in model.variables:
        if one.path.endswith("/bias"):
            one.assign(generator.normal(0, 0.1, one.shape))
    return model


def random_images(count: int = 4) -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.uniform(size=(count, 28, 28, 3)).astype(np.float32)


def test_it_has_the_variables_of_the_source():
    model = build()
    expected = {}
    for name, shape in SHAPES.items():
        expected[f"{name}/kernel"], expected[f"{name}/bias"] = shape, shape[1:]
    found = {one.path: tuple(one.shape) for one in model.trainable_variables}
    assert found == expected
    # 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10.
    assert sum(int(np.prod(shape)) for shape in found.values()) == 109_386
    weights = 784 * 128 + 128 * 64 + 64 * 10
    assert flops.count_forward_pass(model) == 2 * weights


def test_it_is_that_of_the_source():
    model, images = build(), random_images()
    values = {one.path: one.numpy().astype(np.float64) for one in model.variables}
    x = images.astype(np.float64).mean(-1).reshape(4, 784)
    for name in SHAPES:
        x = x @ values[f"{name}/kernel"] + values[f"{name}/bias"]
        x = x if name == "classifier" else np.maximum(x, 0)
    ours = model(images, training=True)
    assert ours.dtype == tf.float32
    np.testing.assert_allclose(ours, x, rtol=1e-4, atol=1e-5)


def test_in_bfloat16_the_logits_come_near_those_in_float32():
    exact, short = build(), build(compute_dtype="bfloat16")
    images = random_images()
    ours, expected = short(images), exact(images)
    assert ours.dtype == tf.float32
    assert 0 < relative_difference(ours, expected) < 0.02


def test_it_takes_images_of_its_size_only():
    with pytest.raises(ValueError, match="incompatible with the layer"):
        build()(np.zeros((2, 32, 32, 3), np.float32))
