"""The recipes against their sources: steps, learning rates, and what is derived."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.recipes import RECIPES, digits, inception
from resnet.config.resolve import resolve
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from tests.unit.seen_images import gradient

EXACT = {"rel": 1e-13, "abs": 0}  # A few roundings of a float64.
CIFAR10 = ("cifar10", *(f"cifar10_{net}_24ep" for net in ("resnet9", "alexnet")))
CIFAR10 += ("cifar10_alexnet_bn_24ep",)
AIRBENCH = ("cifar10_airbench94", "cifar10_94", "cifar10_96")
INCEPTION = ("inception_bsp", "inception_async")


def run_of(name: str) -> Config:
    """Returns the run that a recipe is published for."""
    recipe = RECIPES[name]
    return resolve(recipe, {}, recipe.num_train_examples, ("a", "b"))


# The decay of a step is 1.0418e-6 per image of a batch; here the rate multiplies it.
DECAY_94 = 1.0418e-6 * 1536 / 0.205

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
    "imagenet_18ep": (2048, [(8758, 3128, 5e-4 / 2.048), (2502, None, 5e-4 / 2.048)]),
    "goyal_90ep_8k": (8192, [(14_075, 782, 1e-4)]),  # 90: 14,075.32.
    "imagenette": (64, [(2367, 148, 5e-5)]),  # 16 * 9469 / 64 = 2367.25; 147.95.
    # Ends after 5, 14 and 20 epochs: 739.8, 2071.3, 2959.1; 1: 147.95.
    "imagenette_best": (64, [(740, 148, 5e-4), (1331, None, 5e-4), (888, None, 5e-4)]),
    # Ends after 2.5 and 5 epochs: 369.9, 739.8; 0.5: 73.98.
    "imagenette_5ep": (64, [(370, 74, 5e-4), (370, None, 5e-4)]),
    "imagenette_lars": (64, [(2367, 282, 2e-4)]),  # 5 of 42 epochs in 16: 281.8.
    "finetune": (64, [(1184, 148, 5e-5)]),  # 8 * 9469 / 64 = 1183.6; 147.95.
    # 24 * 50,000 / 512 = 2343.75; 488.28.
    **dict.fromkeys(CIFAR10, (512, [(2344, 488, 5e-4)])),
    # 9.9 epochs of 48 full batches are 475.2 steps, which the source rounds up; the
    # warm-up is 23 % of 476, rounded down. 0.0153 / 11.5.
    AIRBENCH[0]: (1024, [(144, 109, 0.0153 / 11.5), (332, None, 0.0153 / 11.5)]),
    # 0.2, 3.6 and 4.4 epochs of 50,000 / 1536 steps end at 6.51, 123.70 and 266.93.
    AIRBENCH[1]: (
        1536,
        [(steps, None if steps > 7 else 0, DECAY_94) for steps in (7, 117, 143)],
    ),
    # 0.2, 11.8 and 36 epochs end at 6.51, 390.6 and 1562.5.
    AIRBENCH[2]: (
        1536,
        [(steps, None if steps > 7 else 0, DECAY_94) for steps in (7, 384, 1171)],
    ),
    # 40 epochs of 60,000 are 1875 steps of 5 * 256; 20 * 1,281,167 / (5 * 96) = 53,382.
    **{f"cifar10_{name}": (1280, [(1875, 0, 1e-5)]) for name in INCEPTION},
    **{f"imagenet_{name}": (480, [(53_382, 0, 1e-5)]) for name in INCEPTION},
    "digits_mlp": (100, [(2400, 0, 4e-4)]),  # 4 epochs of 60,000.
    "digits": (64, [(269, 22, 5e-5)]),  # 12 * 1437 / 64 = 269.44; 22.45.
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_published_steps_and_weight_decay(name):
    config, recipe = run_of(name), RECIPES[name]
    assert config.recipe == recipe.name == name
    assert recipe.source.strip()
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


# Steps of the run and their rates by hand and the papers' formulas, around the ends of
# warm-ups and phases: a warm-up has start + (peak - start) * i / length.
RATES = """
cifar10_inception_bsp 0:0.4 1874:0.4
digits_mlp 0:0.1 2399:0.1
tpu_90ep_24k 0:0.1 259:4.781923076923077 261:4.798914027149321 2470:2.4
   4679:0.0010859728506787331
collapse_72ep_4k 0:0.1 1559:1.5990384615384616 1560:1.4666666666666666
   3900:1.2666666666666666 7799:0.9334188034188035 7800:1.02 9675:0.57375
   11549:0.2551360181333333 12549:0.763491 12550:0.5738488888888889
   16299:0.10279027136 16300:0.19 21050:0.143 22609:5.876068376068376e-08
collapse_94ep_14k 0:0.1 445:4.789461883408071 446:4.533731343283582 3819:2.52
   7637:0.24059701492537314 7638:0.254 7839:0.0635 8039:1.5717432736813445e-06
lars_35ep_1632 0:0.0 1570:7.4 15308:1.850075
lars_40ep_4k 0:0.0 782:5.0 1563:9.993606138107417 1565:9.998271931571031
   13136:0.00010007466271026005
lars_56ep_32k 0:0.0 313:10.6 625:21.166134185303516 627:21.17417009073182
   2266:0.00010787257216341903
goyal_90ep_8k 0:0.1 781:3.1960358056265985 4691:3.2 4692:0.32 9383:0.32 9384:0.032
   12511:0.0032 14074:0.0032
imagenette 0:0.01 147:0.024898648648648648 149:0.02498873366381253
   2366:1.1266336187471835e-05
imagenet_18ep 0:0.0 3127:2.0473452685421996 3129:2.0479999235856434 7194:1.024
   11259:7.641435661298601e-08
cifar10_94 0:0.205 123:0.11056179775280899 266:0.0007677902621722847
cifar10_96 0:0.16043478260869565 781:0.08021739130434783
cifar10_airbench94 0:0.3 108:1.4889908256880733 110:1.4961989100817439
   143:1.3707629427792916 475:0.1088010899182561
imagenette_best 0:0.007 147:0.06957432432432432 149:0.06999997814171635
   1554:0.03498044188239895 2958:2.185828366252363e-08
imagenette_5ep 0:0.007 73:0.06914864864864866 75:0.06999961060665
   370:0.041077686218342575 739:3.893933500082048e-07
imagenette_collapse 0:0.0015625 162:0.024856211656441717 163:0.02292091836734694
   816:0.014591836734693877 817:0.0159375 2366:8.409706801159246e-08
imagenette_lars 0:0.0 281:0.09964539007092199 283:0.09990410070079189
   2366:1.0230029501578593e-06
cifar10 0:0.0 487:0.39918032786885244 489:0.39978448275862066 1416:0.2
   2343:0.00021551724137931034
digits 0:0.01 11:0.03 21:0.04818181818181818 22:0.05 268:0.00020242914979757084
"""


def test_recipes_have_the_rates_that_hand_and_paper_give():
    rates: dict[str, dict[int, float]] = {}
    for word in RATES.split():
        step, is_rate, rate = word.partition(":")
        if is_rate:
            rates[list(rates)[-1]][int(step)] = float(rate)
        else:
            rates[word] = {}
    for name, expected in rates.items():
        of_run = run_of(name).phases
        found = {step: phases.learning_rate(of_run, step) for step in expected}
        assert found == pytest.approx(expected, **EXACT), name


def test_cifar10_is_an_alias_with_the_normalization_of_its_source():
    recipe = RECIPES["cifar10_resnet9_24ep"]
    assert dataclasses.replace(RECIPES["cifar10"], name=recipe.name) == recipe
    # On a scale of 255: the values of cifar10-fast, to four digits.
    mean, stddev = recipe.channel_mean, recipe.channel_stddev
    assert mean == pytest.approx([125.31 / 255, 122.95 / 255, 113.87 / 255], abs=1e-4)
    assert stddev == pytest.approx([62.99 / 255, 62.09 / 255, 66.70 / 255], abs=1e-4)


def test_the_factors_of_airbench_are_those_of_its_source():
    before, after = run_of(AIRBENCH[0]), run_of(AIRBENCH[1])
    assert before.lookahead_decay == pytest.approx(0.95**5)
    # 0.0573 * 1536 / 0.205, and 0.5415 * 1536 * (9 / 256)^2 / 0.205.
    factors = "/beta:429.33,classifier:5.0147,whitening:"
    assert [phase.layer_rates for phase in after.phases] == [
        f"{factors}429.33",
        f"{factors}0",
        f"{factors}0",
    ]
    assert [phase.image_size for phase in after.phases] == [24, 24, 32]
    for phase in (*before.phases, *after.phases):
        assert phase.shift_fraction * before.image_size == 2


def test_images_of_cifar10_have_28_pixels_less_the_mean():
    config = run_of("cifar10_inception_bsp")
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


def test_rates_without_a_rule_stay_for_another_batch():
    for recipe, rate in ((inception.CIFAR10_BSP, 0.4), (digits.DIGITS_MLP, 0.1)):
        examples = recipe.num_train_examples
        config = resolve(recipe, {"global_batch_size": 10}, examples, ("a", "b"))
        assert phases.learning_rate(config.phases, 0) == rate
    given = {"global_batch_size": 2560, "peak_learning_rate": 0.1}
    other = resolve(inception.CIFAR10_BSP, given, 50_000, ("a", "b"))
    assert other.train_steps == 938  # 2.4 million / 2560 = 937.5.
