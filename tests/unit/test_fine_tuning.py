"""The settings of fine-tuning, and what excludes them."""

import pytest

from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.config.recipes import finetune, imagenette
from resnet.config.resolve import resolve
from resnet.models import names

WEIGHTS = {"initial_weights": "some where"}


def resolved(recipe=finetune.FINETUNE, **given) -> Config:
    return resolve(recipe, given, 9469, ("a", "b"))


def refusal(recipe=finetune.FINETUNE, **given) -> str:
    with pytest.raises(UserError) as caught:
        resolved(recipe, **given)
    return str(caught.value)


def test_the_recipe_teaches_the_new_classifier_as_fast_as_a_training_from_scratch():
    (phase,) = resolved().phases
    (scratch,) = resolved(imagenette.IMAGENETTE).phases
    assert phase.layer_rates == "classifier:10"
    assert 10 * phase.schedule.peak_value == scratch.schedule.peak_value
    assert not phase.freeze_batch_norm


def test_flags_choose_frozen_statistics_and_other_rates():
    given = {"freeze_batch_norm": True, "layer_rates": "stem:0"}
    (phase,) = resolved(**given, **WEIGHTS).phases
    assert (phase.freeze_batch_norm, phase.layer_rates) == (True, "stem:0")


def test_the_statistics_of_a_new_network_are_not_frozen():
    assert refusal(freeze_batch_norm=True) == (
        "--freeze_batch_norm in the first phase of a run needs --initial_weights: the"
        " averages of a new network are not those of any images."
    )


def test_frozen_statistics_are_not_computed_again():
    given = {"freeze_batch_norm": True, "recalibration_batches": 10, **WEIGHTS}
    assert refusal(**given).startswith(
        "--freeze_batch_norm excludes --recalibration_batches, which would evaluate"
    )
    assert resolved(recalibration_batches=10).recalibration_batches == 10


@pytest.mark.parametrize("model", ["mlp", "alexnet"])
def test_a_network_without_statistics_cannot_freeze_them(model):
    given = {"model": model, "image_size": 32, "freeze_batch_norm": True, **WEIGHTS}
    assert refusal(**given) == (
        f"--freeze_batch_norm needs a network with batch normalization; got {model}."
    )


@pytest.mark.parametrize("model", ["resnet50d", "resnet9", "resnet20", "inception_bn"])
def test_other_networks_have_no_variant(model):
    assert refusal(model=model, resnet_variant="torchvision") == (
        "--resnet_variant=torchvision needs a --model among resnet18, resnet34,"
        f" resnet50, resnet101, resnet152, resnet200; got {model}."
    )


@pytest.mark.parametrize("model", names.RESNETS)
def test_resnets_have_the_variants_of_both_programs(model):
    assert resolved(model=model).resnet_variant == "tpu"
    given = {"model": model, "resnet_variant": "torchvision"}
    assert resolved(**given).resnet_variant == "torchvision"


def test_wrong_rates_are_refused_when_the_run_is_resolved():
    assert refusal(layer_rates="stem") == (
        "--layer_rates must be beginnings of layers' names, or kinds of variables such"
        " as /beta, each once, with factors of at least 0, such as"
        " stem:0,stage1:0.1,classifier:10; got 'stem'."
    )


def test_a_method_with_one_rate_for_all_layers_excludes_others():
    sentence = refusal(compress="layerwise", method="dgc")
    assert "--method=dgc excludes --layer_rates: it has one learning rate" in sentence
    resolved(compress="layerwise", method="dgc", layer_rates="")
