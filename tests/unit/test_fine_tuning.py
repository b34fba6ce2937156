"""The settings of fine-tuning, and what excludes them."""

import pytest

from resnet.base.errors import UserError
from resnet.config import networks
from resnet.config.config import Config
from resnet.config.recipes import imagenette
from resnet.config.resolve import resolve

WEIGHTS = {"initial_weights": "some where"}


def resolved(recipe=imagenette.FINETUNE, **given) -> Config:
    return resolve(recipe, given, 9469, ("a", "b"))


def refusal(recipe=imagenette.FINETUNE, **given) -> str:
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


@pytest.mark.parametrize(
    "model", [name for name, row in networks.MODELS.items() if row.has_variants]
)
def test_resnets_have_the_variants_of_both_programs(model):
    assert resolved(model=model).resnet_variant == "tpu"
    given = {"model": model, "resnet_variant": "torchvision"}
    assert resolved(**given).resnet_variant == "torchvision"
