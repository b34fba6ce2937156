"""Networks that are built again of stock layers compute what the networks compute."""

import keras
import numpy as np
import pytest

from resnet import models
from resnet.data.augmentation.preprocessing import IMAGENET
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.models import alexnet, inception, layers, resnet

BATCH = 3


def described(model: str, precision: str, is_folded: bool, image_size: int) -> Contents:
    return Contents(
        model=model,
        step=1,
        weights="raw",
        precision=precision,
        is_folded=is_folded,
        image_size=image_size,
        crop="crop_then_resize",
        crop_fraction=0.875,
        channel_mean=IMAGENET.mean,
        channel_stddev=IMAGENET.stddev,
        batch_norm_epsilon=1e-5,
        class_names=tuple("abcde"),
    )


CONSTANT = ("whitening/kernel",)  # It starts as zeros.


def built(name: str, image_size: int, **given) -> keras.Model:
    """Returns a network in which no variable has the value that it starts with."""
    network = models.build(name, 5, image_size, seed=1, **given)
    generator = np.random.default_rng(0)
    for variable in network.variables:
        name = variable.path.rpartition("/")[2]
        if name in ("gamma", "moving_variance"):
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
        elif name in ("beta", "bias", "moving_mean") or variable.path in CONSTANT:
            variable.assign(generator.normal(0, 0.2, variable.shape))
    return network


def images_of(size: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(0, 255, (BATCH, size, size, 3))


def own_probabilities(network: keras.Model, images: np.ndarray) -> np.ndarray:
    normalized = (images / 255 - IMAGENET.mean) / IMAGENET.stddev
    logits = network(normalized.astype(np.float32), training=False)
    return keras.ops.softmax(logits).numpy()


@pytest.fixture
def small(monkeypatch):
    """Leaves few blocks of the large networks, one of each kind."""
    depths = {18: ((1, 1, 1, 1), False), 50: ((2, 1, 1, 1), True)}
    monkeypatch.setattr(resnet, "DEPTHS", depths)
    kinds = inception.MODULES[1:3] + inception.MODULES[-1:]
    monkeypatch.setattr(inception, "MODULES", kinds)
    monkeypatch.setattr(alexnet, "DENSE_UNITS", 64)


CASES = [
    ("resnet8", 31, {}),
    ("resnet9", 32, {}),
    ("airbench94", 32, {"batch_norm_epsilon": 1e-5}),
    ("alexnet", 28, {}),
    ("inception_bn", 33, {"batch_norm_epsilon": 0.05, "fixed_gamma": True}),
    ("mlp", 12, {}),
    ("resnet18d", 45, {}),
    ("resnet18", 36, {"resnet_variant": "torchvision"}),
    ("resnet18d", 33, {"activation": "mish", "se_ratio": 0.25, "blur_pool": "all"}),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "size", "given"), CASES, ids=[c[0] for c in CASES])
def test_the_probabilities_are_those_of_the_network(name, size, given):
    network = built(name, size, **given)
    has_norms = any(isinstance(layer, layers.ConvNorm) for layer in network.layers)
    images = images_of(size)
    expected = own_probabilities(network, images)
    assert expected.max() < 0.999  # Or it tells little.
    for is_folded in (True, False):
        contents = described(name, "float32", is_folded, size)
        stock = stock_network.build(network, contents)
        found = stock(images.astype(np.float32), training=False)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        modules = [type(layer).__module__ for layer in stock.layers]
        assert {module.split(".")[0] for module in modules} == {"keras"}
        kinds = {type(layer) for layer in stock.layers}
        is_there = keras.layers.BatchNormalization in kinds
        assert is_there == (has_norms and not is_folded)


def test_an_unfolded_network_is_trained_as_the_network_is():
    """Its statistics move as far, and its constants stay constants."""
    network = built("resnet8", 32, batch_norm_momentum=0.8)
    contents = described("resnet8", "float32", False, 32)
    stock = stock_network.build(network, contents)
    assert len(stock.trainable_variables) == len(network.trainable_variables)
    images = images_of(32)
    own_probabilities(network, images)
    normalized = (images / 255 - IMAGENET.mean) / IMAGENET.stddev
    network(normalized.astype(np.float32), training=True)
    stock(images.astype(np.float32), training=True)
    ours = network.get_layer("stem")
    theirs = stock.get_layer("stem_bn")
    np.testing.assert_allclose(
        theirs.moving_mean.numpy(), ours.moving_mean.numpy(), rtol=0, atol=1e-5
    )


def test_bf16_computes_in_bfloat16_and_ends_in_float32():
    network = built("resnet8", 32)
    images = images_of(32).astype(np.float32)
    expected = own_probabilities(network, images)
    stock = stock_network.build(network, described("resnet8", "bf16", True, 32))
    assert stock.get_layer("stem").kernel.dtype == "bfloat16"
    probabilities = stock(images, training=False).numpy()
    assert probabilities.dtype == np.float32
    difference = np.abs(probabilities - expected).max()
    assert 1e-6 < difference < 0.05  # The rounding of 8 bits, over nine layers.
    unfolded = stock_network.build(network, described("resnet8", "bf16", False, 32))
    stem = unfolded.get_layer("stem")
    assert (stem.kernel.dtype, stem.compute_dtype) == ("float32", "bfloat16")


def test_a_counterpart_that_misses_something_is_found(monkeypatch):
    network = built("alexnet_bn", 32)
    pool = keras.layers.MaxPooling2D
    monkeypatch.setattr(
        stock_network.stock,
        "MaxPooling2D",
        lambda **options: pool(**{**options, "padding": "valid"}),
    )
    contents = described("alexnet_bn", "float32", True, 33)
    with pytest.raises(RuntimeError, match="must compute the probabilities"):
        stock_network.build(built("alexnet_bn", 33), contents)
    contents = described("alexnet_bn", "float32", True, 32)
    stock_network.build(network, contents)  # There are no borders.
