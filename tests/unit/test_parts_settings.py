"""The settings of the networks' parts and of the loss, and what excludes them."""

import dataclasses
import math

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.config import explain
from resnet.config.config import Config
from resnet.config.recipes import finetune, imagenette
from resnet.config.resolve import resolve
from resnet.models import initialization, names
from resnet.optim.train_state import TrainState

PARTS = [("activation", "silu"), ("se_ratio", 0.25), ("blur_pool", "convolutions")]


def resolved(recipe=imagenette.IMAGENETTE, **given) -> Config:
    return resolve(recipe, given, 9469, ("a", "b"))


def refusal(recipe=imagenette.IMAGENETTE, **given) -> str:
    with pytest.raises(UserError) as caught:
        resolved(recipe, **given)
    return str(caught.value)


@pytest.mark.parametrize("model", names.RESNETS_WITH_PARTS)
def test_resnets_can_have_the_parts(model):
    config = resolved(model=model, **dict(PARTS))
    assert [getattr(config, name) for name, _ in PARTS] == [v for _, v in PARTS]


@pytest.mark.parametrize("model", ["resnet9", "resnet20", "inception_bn", "mlp"])
@pytest.mark.parametrize(("name", "value"), PARTS)
def test_other_networks_have_none_of_them(model, name, value):
    sentence = refusal(model=model, image_size=32, **{name: value})
    assert sentence.startswith(f"--{name}={value} needs a --model among resnet18, ")
    assert sentence.endswith(f"resnet200d; got {model}.")


@pytest.mark.parametrize("model", names.MODELS_OF_ONE_IMAGE_SIZE)
def test_a_network_for_one_image_size_excludes_progressive_sizes(model):
    sentence = refusal(imagenette.IMAGENETTE_BEST, model=model, blur_pool="none")
    assert sentence.startswith(f"{model} needs images of the same size in all phases")
    assert "got 96, 128, 160, 176 pixels in the recipe imagenette_best." in sentence
    assert resolved(model=model, image_size=32).image_size == 32


def test_the_pooling_of_torchvision_needs_relu():
    assert refusal(resnet_variant="torchvision", activation="mish") == (
        "--resnet_variant=torchvision needs --activation=relu, whose results the zeros"
        " around the max pooling never exceed; got mish."
    )
    resolved(resnet_variant="torchvision", se_ratio=0.25, blur_pool="all")


def test_a_threshold_needs_the_loss_that_has_one():
    assert refusal(target_threshold=0.2) == (
        "target_threshold of phase 'train' needs --loss=binary_cross_entropy; got"
        " cross_entropy."
    )
    (phase,) = resolved(loss="binary_cross_entropy", target_threshold=0.2).phases
    assert phase.target_threshold == 0.2


def test_the_plan_tells_the_parts():
    given = {**dict(PARTS), "optimizer": "sgdw", "loss": "binary_cross_entropy"}
    text = explain.describe_run(
        imagenette.IMAGENETTE, {}, explain.Derived(resolved(**given), 2)
    )
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


def test_the_first_trained_phase_decides_the_biases(make_config):
    config = make_config(model="resnet8")
    (phase,) = config.phases
    binary = dataclasses.replace(phase, name="b", loss="binary_cross_entropy")
    both = dataclasses.replace(config, phases=(phase, binary))
    for first, expected in (("", 0.0), ("b", -math.log(3))):
        state = TrainState(dataclasses.replace(both, first_phase=first))
        bias = state.model.get_layer("classifier").bias.numpy()
        np.testing.assert_allclose(bias, [expected] * 3, rtol=1e-6)


def test_a_network_without_these_biases_is_refused():
    class Last:
        bias = None

    class Network:
        name, layers = "resnet9", [Last()]

    with pytest.raises(ValueError, match="expected a last layer with biases"):
        initialization.initialize_last_bias(Network(), -2.3)


@pytest.mark.parametrize("model", ["resnet9", "airbench94", "alexnet_bn"])
def test_binary_cross_entropy_needs_biases_to_begin_with(model):
    assert refusal(model=model, image_size=32, loss="binary_cross_entropy") == (
        "--loss=binary_cross_entropy needs a network whose last layer has biases; got"
        f" {model}, which has none."
    )


def test_sgdw_decays_what_momentum_decays(make_config):
    config = make_config(model="resnet8", optimizer="sgdw", weight_decay=0.1)
    state = TrainState(config)
    momentum = TrainState(dataclasses.replace(config, optimizer="momentum"))
    assert state.optimizer.decays == momentum.optimizer.decays
    assert state.weight_penalty() == 0.0
    assert momentum.weight_penalty() > 0.0


def test_a_fine_tuned_network_has_parts_and_loss_too():
    config = resolved(finetune.FINETUNE, loss="binary_cross_entropy", blur_pool="all")
    assert (config.phases[0].loss, config.blur_pool) == ("binary_cross_entropy", "all")
