"""The recipes of MXNet's examples: Inception-BN and the multilayer perceptron."""

import dataclasses

import numpy as np
import tensorflow as tf

from resnet.base import json_file
from resnet.config import explain, recipe_file
from resnet.config.config import Config, Derived
from resnet.config.recipes import digits, inception
from resnet.config.resolve import resolve
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.optim.train_state import TrainState, build_model
from tests.unit import small_recipe_file
from tests.unit.seen_images import gradient

CIFAR10 = inception.CIFAR10_BSP, inception.CIFAR10_ASYNC
IMAGENET = inception.IMAGENET_BSP, inception.IMAGENET_ASYNC
TEN_CLASSES = tuple("abcdefghij")


def run_of(recipe, **overrides) -> Config:
    return resolve(recipe, overrides, recipe.num_train_examples, TEN_CLASSES)


def explained(recipe, num_ranks: int, **overrides) -> str:
    derived = Derived(run_of(recipe, **overrides), num_ranks)
    return " ".join(explain.describe_run(recipe, overrides, derived).split())


def test_an_epoch_of_the_source_is_said_to_be_what_it_is():
    for recipe in CIFAR10:
        text = explained(recipe, 5)
        assert "1,875 steps = 48.00 epochs = 2.40 million images" in text
        assert "40_epochs_of_60000" in text
        # 60,000 / 256 / 5, rounded down twice.
        assert "its 40 epochs have 1,840 steps" in text
        assert 40 * (60_000 // 256 // 5) == 1840
    assert "4_epochs_of_60000" in explained(digits.DIGITS_MLP, 1)


def test_the_plan_names_what_is_unusual():
    for recipe in (*CIFAR10, *IMAGENET):
        text = explained(recipe, 10)  # The source has 10 GPUs.
        assert "batch normalization with momentum 0.9, epsilon 1e-10" in text
        assert "momentum, Caffe-style" in text
        assert "Changed from the recipe" not in text


def test_images_of_cifar10_have_28_pixels_less_the_mean():
    config = run_of(inception.CIFAR10_BSP)
    original = gradient(32, 32).astype(np.uint8)
    center = preprocessing.eval_image(
        tf.constant(original),
        config.image_size,
        config.eval_crop_fraction,
        config.eval_crop,
        Normalization(config.channel_mean, config.channel_stddev),
    )
    pixels = center.numpy() + 255 * np.array(config.channel_mean)
    np.testing.assert_allclose(pixels, original[2:30, 2:30], atol=1e-3)


def test_a_run_has_the_network_and_the_decay_of_its_recipe():
    state = TrainState(run_of(inception.CIFAR10_BSP))
    assert all(state.optimizer.decays)
    kernel = state.model.get_layer("stem").kernel.numpy()
    assert 0.99 * 0.07 < np.abs(kernel).max() <= 0.07
    assert state.model.get_layer("4a_1x1").options.epsilon == 1e-10


def test_the_normalization_of_later_code_is_two_fields_of_a_recipe_file(tmp_path):
    contents = {
        "based_on": "cifar10_inception_bsp",
        "name": "later",
        "batch_norm_epsilon": 1e-3,
        "fixed_gamma": True,
    }
    recipe = recipe_file.get(str(small_recipe_file.write(tmp_path, contents)))
    config = run_of(recipe)
    model = build_model(config)
    assert not any(variable.path.endswith("/gamma") for variable in model.variables)
    assert model.get_layer("stem").options.epsilon == 1e-3
    assert "epsilon 0.001, gamma fixed to 1" in explained(recipe, 10)
    assert json_file.instance(Config, dataclasses.asdict(config)) == config
