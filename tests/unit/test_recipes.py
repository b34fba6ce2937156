import dataclasses

import pytest

from resnet.base.settings import declarations
from resnet.config.config import Config
from resnet.config.phases import AUGMENTATIONS
from resnet.config.recipe import EVAL_CROPS, Recipe, RecipePhase
from resnet.config.recipes import RECIPES, cifar10, digits, imagenette
from resnet.config.resolve import resolve
from resnet.models import names

CLASSES = ("a", "b")

CIFAR10_RECIPES = (
    "cifar10",
    "cifar10_resnet9_24ep",
    "cifar10_alexnet_bn_24ep",
    "cifar10_alexnet_24ep",
)
AIRBENCH = ("cifar10_airbench94", "cifar10_94")

INCEPTION_RECIPES = (
    "cifar10_inception_bsp",
    "cifar10_inception_async",
    "imagenet_inception_bsp",
    "imagenet_inception_async",
)


def run_of(name: str) -> Config:
    """Returns the run that a recipe is published for."""
    recipe = RECIPES[name]
    return resolve(recipe, {}, recipe.num_train_examples, CLASSES)


def test_the_names_are_those_of_the_documents():
    assert list(RECIPES) == [
        "tpu_90ep_24k",
        "tpu_90ep_8k",
        "collapse_72ep_4k",
        "collapse_94ep_14k",
        "goyal_90ep_8k",
        "lars_35ep_1632",
        "lars_35ep_3264",
        "lars_40ep_4k",
        "lars_42ep_8k",
        "lars_45ep_13k",
        "lars_56ep_32k",
        "imagenet_18ep",
        "imagenette",
        "imagenette_best",
        "imagenette_collapse",
        "imagenette_lars",
        "finetune",
        "cifar10",
        "cifar10_resnet9_24ep",
        "cifar10_alexnet_bn_24ep",
        "cifar10_alexnet_24ep",
        "cifar10_airbench94",
        "cifar10_94",
        "cifar10_inception_bsp",
        "cifar10_inception_async",
        "imagenet_inception_bsp",
        "imagenet_inception_async",
        "digits",
        "digits_mlp",
    ]


def test_each_recipe_is_found_by_its_name_and_says_where_it_comes_from():
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert RECIPES[name] is recipe
        assert recipe.source.strip()


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_resolves_without_flags(name):
    config = run_of(name)
    recipe = RECIPES[name]
    assert config.recipe == name
    assert config.model == recipe.model
    assert config.global_batch_size == recipe.global_batch_size
    assert len(config.phases) == len(recipe.phases)
    assert config.first_phase == config.initial_weights == ""


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_names_what_the_program_has(name):
    recipe = RECIPES[name]
    assert recipe.model in names.MODELS
    assert recipe.optimizer in declarations(Recipe)["optimizer"].names
    assert recipe.eval_crop in EVAL_CROPS
    for part in recipe.phases:
        assert part.augmentation in AUGMENTATIONS


# Name: batch, and for each phase steps, warm-up steps and weight decay.
PUBLISHED = {
    "tpu_90ep_24k": (24_576, [(4680, 260, 5e-5)]),
    "tpu_90ep_8k": (8192, [(14_075, 782, 5e-5)]),  # 5 epochs: 781.96.
    "collapse_72ep_4k": (
        4096,
        [
            (7800, 1560, 5e-5),
            (3750, 0, 5e-5),
            (4750, 1000, 5e-5),
            (4750, 1000, 5e-5),
            (1560, 0, 2e-4),
        ],
    ),
    "collapse_94ep_14k": (14_336, [(7638, 446, 5e-5), (402, 0, 1e-4)]),
    # The table's steps of decay; warm-ups are epochs times 1,281,167 images, divided by
    # the batch.
    "lars_35ep_1632": (1632, [(1570 + 27_476, 1570, 5e-5)]),  # 2: 1570.06.
    "lars_35ep_3264": (3264, [(14_523, 785, 5e-5)]),  # 2: 785.03.
    "lars_40ep_4k": (4096, [(13_137, 1564, 2e-4)]),  # 5: 1563.92.
    "lars_42ep_8k": (8192, [(782 + 6095, 782, 2e-4)]),  # 5: 781.96.
    "lars_45ep_13k": (13_056, [(4710, 883, 2.5e-5)]),  # 9: 883.16.
    "lars_56ep_32k": (32_768, [(2267, 626, 2.5e-5)]),  # 16: 625.57.
    # Ends after 14 and 18 epochs of 625.57 steps: 8757.98, 11,260.26; 5: 3127.85.
    "imagenet_18ep": (
        2048,
        [(8758, 3128, 5e-4 / 2.048), (2502, None, 5e-4 / 2.048)],
    ),
    "goyal_90ep_8k": (8192, [(14_075, 782, 1e-4)]),  # 90: 14,075.32.
    "imagenette": (64, [(2367, 148, 5e-5)]),  # 16 * 9469 / 64 = 2367.25; 147.95.
    # Ends after 5, 14 and 20 epochs: 739.8, 2071.3, 2959.1; 1: 147.95.
    "imagenette_best": (
        64,
        [(740, 148, 5e-4), (1331, None, 5e-4), (888, None, 5e-4)],
    ),
    # The five phases in 16 epochs: 2367.25 steps instead of 22,610. Their ends are
    # 816.7, 1209.3, 1706.6, 2203.9; warm-ups 163.3, 0, 104.7, 104.7, 0.
    "imagenette_collapse": (
        64,
        [
            (817, 163, 5e-5),
            (392, 0, 5e-5),
            (498, 105, 5e-5),
            (497, 105, 5e-5),
            (163, 0, 2e-4),
        ],
    ),
    "imagenette_lars": (64, [(2367, 282, 2e-4)]),  # 5 of 42 epochs in 16: 281.8.
    "finetune": (64, [(1184, 148, 5e-5)]),  # 8 * 9469 / 64 = 1183.6; 147.95.
    # 24 * 50,000 / 512 = 2343.75; 488.28.
    **dict.fromkeys(CIFAR10_RECIPES, (512, [(2344, 488, 5e-4)])),
    # 9.9 epochs of 48 full batches are 475.2 steps, which the source rounds up; the
    # warm-up is 23 % of 476, rounded down. 0.0153 / 11.5.
    AIRBENCH[0]: (1024, [(144, 109, 0.0153 / 11.5), (332, None, 0.0153 / 11.5)]),
    AIRBENCH[1]: (2000, [(75, 0, 4e-3 / 0.24), (125, None, 4e-3 / 0.24)]),
    # 40 epochs of 60,000 are 1875 steps of 5 * 256; 20 * 1,281,167 / (5 * 96) = 53,382.
    **dict.fromkeys(INCEPTION_RECIPES[:2], (1280, [(1875, 0, 1e-5)])),
    **dict.fromkeys(INCEPTION_RECIPES[2:], (480, [(53_382, 0, 1e-5)])),
    "digits_mlp": (100, [(2400, 0, 4e-4)]),  # 4 epochs of 60,000.
    "digits": (64, [(269, 22, 5e-5)]),  # 12 * 1437 / 64 = 269.44; 22.45.
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_published_steps_and_weight_decay(name):
    config = run_of(name)
    batch, expected = PUBLISHED[name]
    assert config.global_batch_size == batch
    assert [
        (
            phase.num_steps,
            phase.schedule.warmup_length if phase.schedule else None,
            phase.weight_decay,
        )
        for phase in config.phases
    ] == expected


@pytest.mark.parametrize(
    ("name", "train_steps", "epochs"),
    [
        ("tpu_90ep_24k", 4680, 89.774),
        ("tpu_90ep_8k", 14_075, 89.998),
        ("collapse_72ep_4k", 22_610, 72.286),
        ("collapse_94ep_14k", 8040, 89.966),
    ],
)
def test_the_published_runs_have_the_published_lengths(name, train_steps, epochs):
    config = run_of(name)
    assert config.train_steps == train_steps
    assert config.epoch(train_steps) == pytest.approx(epochs, abs=5e-4)


def test_the_24k_recipe_has_the_published_numbers():
    config = run_of("tpu_90ep_24k")
    assert config.model == "resnet50"
    assert config.num_train_examples == 1_281_167
    assert config.image_size == 224
    assert config.batch_norm_momentum == 0.95
    assert config.eval_crop_fraction == 0.875
    assert config.eval_crop == "resize_then_crop"
    assert config.optimizer == "momentum"
    assert config.nesterov
    assert not config.learning_rate_in_velocity
    assert config.zero_last_gamma
    assert config.clip_norm == config.ema_decay == 0
    (phase,) = config.phases
    assert phase.momentum == 0.9
    assert phase.label_smoothing == 0
    assert phase.image_size == 224
    assert phase.augmentation == "random_resized_crop_2018_02"
    assert phase.min_crop_area == 0.08
    assert phase.random_augment == phase.mixup == phase.cutmix == 0


@pytest.mark.parametrize("name", ["collapse_72ep_4k", "collapse_94ep_14k"])
def test_the_runs_of_caffe_are_those_of_caffe(name):
    config = run_of(name)
    assert config.model == "resnet50"
    assert config.batch_norm_momentum == 0.95
    assert config.eval_crop == "resize_then_crop"
    assert config.optimizer == "momentum"
    assert not config.nesterov
    assert config.learning_rate_in_velocity
    assert not config.zero_last_gamma
    for phase in config.phases:
        assert phase.reset_momentum  # A solver is begun with the weights only.
        assert phase.momentum == 0.9
        assert phase.label_smoothing == 0
    augmentations = [phase.augmentation for phase in config.phases]
    *whole, last = augmentations
    assert set(whole) == {"random_resized_crop"}
    assert last == "random_crop"


def test_the_phases_have_the_names_of_their_solvers():
    found = [phase.name for phase in run_of("collapse_72ep_4k").phases]
    assert found == ["init", "cyc1", "cyc2", "cyc3", "collapse"]
    found = [phase.name for phase in run_of("collapse_94ep_14k").phases]
    assert found == ["linear", "collapse"]


def test_the_tpu_runs_say_whose_crops_they_have_and_what_is_inferred():
    for name in ("tpu_90ep_24k", "tpu_90ep_8k"):
        recipe = RECIPES[name]
        text = " ".join(recipe.deviations)
        assert recipe.eval_crop == "resize_then_crop"
        assert recipe.phases[0].augmentation == "random_resized_crop_2018_02"
        assert "those of February 2018, so images are cropped as there" in text
        assert "--augmentation=random_resized_crop --eval_crop=crop_then_resize" in text
    assert "inferred from the step in its log, 14,075" in text


@pytest.mark.parametrize(
    "name",
    [
        *("tpu_90ep_24k", "tpu_90ep_8k", "collapse_72ep_4k", "collapse_94ep_14k"),
        *("goyal_90ep_8k", "lars_35ep_1632", "lars_40ep_4k"),
    ],
)
def test_recipes_say_which_bound_of_a_crop_counts(name):
    recipe = RECIPES[name]
    assert recipe.phases[0].min_crop_area == 0.08
    assert recipe.phases[0].smallest_crop_area == 0.1
    text = " ".join(recipe.deviations)
    assert "min_object_covered" in text
    assert "10 %" in text
    assert (
        "below 0.1 it acts as 0.1"
        in declarations(Recipe, RecipePhase)["min_crop_area"].help
    )


def test_goyals_run_has_their_numbers():
    config = run_of("goyal_90ep_8k")
    (phase,) = config.phases
    assert phase.momentum == 0.9
    assert phase.schedule.boundaries == (4692, 9384, 12_511)  # 30, 60 and 80 epochs.
    assert phase.schedule.decay_factor == 0.1
    assert config.batch_norm_momentum == 0.9
    assert config.nesterov
    # Momentum correction at each change of the rate leaves the factor what it is.
    assert not config.learning_rate_in_velocity
    for step in (100, 4692, 9384, 12_511):
        assert config.settings_at(step).velocity_factor == 0.9


def test_the_small_recipes_are_for_small_images():
    found = {
        name: (RECIPES[name].model, RECIPES[name].image_size)
        for name in ("imagenette", "cifar10", "digits")
    }
    assert found == {
        "imagenette": ("resnet50", 128),
        "cifar10": ("resnet9", 32),
        "digits": ("resnet18", 32),
    }
    assert cifar10.CIFAR10.phases[0].augmentation == "pad_crop_flip_cutout"
    # A mirrored digit is another sign.
    assert digits.DIGITS.phases[0].augmentation == "random_shift"
    for recipe in (imagenette.IMAGENETTE, digits.DIGITS):
        assert recipe.phases[0].label_smoothing == 0.1
        assert recipe.phases[0].momentum == 0.9


def test_cifar10_is_an_alias():
    alias = RECIPES["cifar10"]
    assert (
        dataclasses.replace(alias, name="cifar10_resnet9_24ep")
        == RECIPES["cifar10_resnet9_24ep"]
    )


@pytest.mark.parametrize("name", CIFAR10_RECIPES)
def test_the_recipes_for_cifar10_have_the_settings_of_their_sources(name):
    recipe = RECIPES[name]
    assert recipe.initialization == "pytorch"
    assert recipe.decay_batch_norm
    # On a scale of 255: the values of cifar10-fast, 125.31, 122.95, 113.87 and 62.99,
    # 62.09, 66.70, to four digits.
    mean, stddev = recipe.channel_mean, recipe.channel_stddev
    assert mean == pytest.approx([125.31 / 255, 122.95 / 255, 113.87 / 255], abs=1e-4)
    assert stddev == pytest.approx([62.99 / 255, 62.09 / 255, 66.70 / 255], abs=1e-4)
    (phase,) = recipe.phases
    assert phase.augmentation == "pad_crop_flip_cutout"
    has_momentum = name != "cifar10_alexnet_24ep"  # By default its source has none.
    assert (phase.momentum, recipe.nesterov) == (0.9 * has_momentum, has_momentum)
    assert (recipe.batch_norm_momentum, recipe.eval_crop_fraction) == (0.9, 1.0)


def test_the_recipe_of_airbench94_has_the_settings_of_its_source():
    config = run_of(AIRBENCH[0])
    assert (config.model, config.global_batch_size) == ("airbench94", 1024)
    assert (config.nesterov, config.decay_batch_norm) == (True, True)
    assert (config.batch_norm_momentum, config.batch_norm_epsilon) == (0.6, 1e-12)
    assert (config.lookahead_every, config.lookahead_power) == (5, 3)
    assert config.lookahead_decay == pytest.approx(0.95**5)
    assert config.eval_views == "flip_and_shift"
    # 11.5 / (1 + 1 / 0.15) = 1.5; 20 % of it at first, 7 % at the end.
    rates = [config.settings_at(step).learning_rate for step in (0, 109, 476)]
    assert rates == pytest.approx([0.3, 1.5, 0.105])
    for phase in config.phases:
        assert (phase.momentum, phase.label_smoothing) == (0.85, 0.2)
        assert (phase.augmentation, phase.flips) == ("pad_crop_flip", "alternating")
        assert phase.shift_fraction * config.image_size == 2
        assert not phase.layer_rates_scale_decay
    frozen = [phase.layer_rates for phase in config.phases]
    assert frozen == ["/beta:64", "/beta:64,whitening:0"]


def test_the_fastest_recipe_for_cifar10_has_the_settings_of_its_source():
    config, before = run_of(AIRBENCH[1]), run_of(AIRBENCH[0])
    assert (config.optimizer, config.muon_momentum) == ("muon", 0.6)
    assert (config.lookahead_every, config.global_batch_size) == (0, 2000)
    for setting in ("model", "nesterov", "decay_batch_norm", "batch_norm_momentum"):
        assert getattr(config, setting) == getattr(before, setting)
    assert config.eval_views == "flip_and_shift"
    for phase in config.phases:
        assert (phase.momentum, phase.label_smoothing) == (0.85, 0.2)
        assert (phase.augmentation, phase.flips) == ("pad_crop_flip", "alternating")
        assert phase.shift_fraction * config.image_size == 2
        assert not phase.layer_rates_scale_decay
    # 0.053 * 2000 / 0.24, and 0.67 * 2000 * (9 / 256)^2 / 0.24.
    factors = "/beta:441.67,classifier:6.9008,whitening:"
    assert [phase.layer_rates for phase in config.phases] == [
        f"{factors}441.67",
        f"{factors}0",
    ]


def test_other_recipes_keep_the_settings_that_they_had():
    others = {*CIFAR10_RECIPES, *AIRBENCH, *INCEPTION_RECIPES, "digits_mlp"}
    for name in set(RECIPES) - others:
        recipe = RECIPES[name]
        assert recipe.initialization == "variance_scaling"
        assert recipe.decay_batch_norm == (name == "imagenet_18ep")
        assert recipe.channel_mean == (0.485, 0.456, 0.406)
        assert recipe.channel_stddev == (0.229, 0.224, 0.225)
        assert (recipe.batch_norm_epsilon, recipe.fixed_gamma) == (1e-5, False)


def test_a_recipe_is_only_read():
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.DIGITS.model = "resnet34"  # type: ignore[misc]
