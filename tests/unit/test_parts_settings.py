"""The settings of the networks' parts and of the loss, and what excludes them."""

import dataclasses
import math

import numpy as np
import pytest

from resnet import models
from resnet.config import explain
from resnet.config.config import Derived
from resnet.config.recipes import imagenette
from resnet.config.resolve import resolve
from resnet.optim.train_state import TrainState


def test_the_plan_tells_the_parts():
    overrides = {"activation": "silu", "se_ratio": 0.25, "blur_pool": "convolutions"}
    overrides |= {"optimizer": "sgdw", "loss": "binary_cross_entropy"}
    recipe = imagenette.IMAGENETTE
    config = resolve(recipe, overrides, 9469, ("a", "b"))
    text = explain.describe_run(recipe, {}, Derived(config, 2))
    words = " ".join(text.split())
    assert (
        "network resnet50 with silu, squeeze-and-excitation of ratio 0.25, BlurPool in"
        " strided convolutions in float32"
    ) in words
    assert "optimizer momentum and decoupled weight decay (SGDW) with Nesterov" in words
    assert "loss binary_cross_entropy" in words


def test_binary_cross_entropy_begins_with_low_biases(make_config):
    config = make_config(model="resnet8", loss="binary_cross_entropy")
    bias = TrainState(config).model.get_layer("classifier").bias.numpy()
    np.testing.assert_allclose(bias, [-math.log(3)] * 3, rtol=1e-6)
    other = dataclasses.replace(config, initialization="pytorch")
    bias = TrainState(other).model.get_layer("classifier").bias.numpy()
    np.testing.assert_allclose(bias, [-math.log(3)] * 3, rtol=1e-6)


@pytest.mark.parametrize("model", ["mlp", "alexnet"])
def test_the_biases_are_those_of_the_classifier_whatever_follows_it(model):
    network = models.build(model, 3, 28, classifier_bias_init=-1.5)
    biases = [v for v in network.trainable_variables if v.path.endswith("/bias")]
    means = {variable.path: float(np.mean(variable)) for variable in biases}
    assert means.pop("classifier/bias") == -1.5
    assert not any(means.values())


def test_the_first_trained_phase_decides_the_biases(make_config):
    config = make_config(model="resnet8")
    (phase,) = config.phases
    binary = dataclasses.replace(phase, name="b", loss="binary_cross_entropy")
    both = dataclasses.replace(config, phases=(phase, binary))
    for first, expected in (("", 0.0), ("b", -math.log(3))):
        state = TrainState(dataclasses.replace(both, first_phase=first))
        bias = state.model.get_layer("classifier").bias.numpy()
        np.testing.assert_allclose(bias, [expected] * 3, rtol=1e-6)


def test_sgdw_decays_what_momentum_decays(make_config):
    config = make_config(model="resnet8", optimizer="sgdw", weight_decay=0.1)
    state = TrainState(config)
    momentum = TrainState(dataclasses.replace(config, optimizer="momentum"))
    assert state.optimizer.decays == momentum.optimizer.decays
    assert state.weight_penalty() == 0.0
    assert momentum.weight_penalty() > 0.0
