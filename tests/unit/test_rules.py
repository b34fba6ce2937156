"""What needs or excludes what, how a batch is divided, and what ranges allow."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config import networks
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import (
    cifar10,
    digits,
    imagenet,
    imagenette,
    inception,
)
from resnet.config.resolve import resolve
from resnet.config.rules import broken, check_ranks, problems_of_overrides
from resnet.config.schedules import Schedule
from tests.unit.resolved_phases import COLLAPSE, TPU, TWO_PHASES

WITH_PARTS = [name for name, row in networks.MODELS.items() if row.has_parts]
LAYERWISE = {"compress": "layerwise"}
FROZEN = {"freeze_batch_norm": True, "initial_weights": "some where"}
LOCAL = "--sync_every and --qsr_coefficient"
TORCHVISION = {"resnet_variant": "torchvision"}
BINARY = {"loss": "binary_cross_entropy"}
QSGD = {**LAYERWISE, "method": "qsgd", "error_feedback": True}


def resolved(recipe: Recipe = digits.DIGITS, **overrides) -> Config:
    return resolve(recipe, overrides, recipe.num_train_examples, ("a", "b"))


def refusal(recipe: Recipe = digits.DIGITS, **overrides) -> str:
    with pytest.raises(UserError) as caught:
        resolved(recipe, **overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "term"),
    [
        ({"accumulation_steps": 2}, "--accumulation_steps=2"),
        (LAYERWISE, "--compress=layerwise"),
        ({"sync_every": 2}, LOCAL),
        ({"qsr_coefficient": 0.1}, LOCAL),
        ({"optimizer": "lars"}, "--optimizer=lars"),
        ({"optimizer": "sgdw"}, "--optimizer=sgdw"),
        ({"optimizer": "adamw"}, "--optimizer=adamw"),
        ({"optimizer": "muon"}, "--optimizer=muon"),
        ({"ema_decay": 0.9}, "--ema_decay=0.9"),
        ({"layer_rates": "classifier:10"}, "--layer_rates=classifier:10"),
        (FROZEN, "--freeze_batch_norm"),
        ({"model": "airbench94"}, "--model=airbench94"),
        ({"eval_views": "flip"}, "eval_views=flip"),
        ({"shard_by": "file"}, "--shard_by=file"),
        ({"on_bad_record": "skip"}, "--on_bad_record=skip"),
        ({"decoded_cache_mb": 1}, "--decoded_cache_mb=1"),
        ({"record_log": "records"}, "--record_log=records"),
        ({"recalibration_batches": 2}, "--recalibration_batches=2"),
        ({"lookahead_every": 5}, "lookahead_every=5 of the recipe digits excludes"),
    ],
)
def test_what_workers_cannot_do_by_themselves_is_refused(overrides, term):
    resolved(**overrides)  # A synchronous run may.
    sentence = refusal(sync_mode="async", **overrides)
    assert "--sync_mode=async" in sentence
    assert "excludes" in sentence
    assert term in sentence
    assert sentence.count(".") - sentence.count("0.") <= 2  # Nothing else is refused.


@pytest.mark.parametrize(
    ("recipe", "overrides", "left", "right"),
    [
        (digits.DIGITS, {"max_staleness": 0}, "--max_staleness=0", "--sync_mode=async"),
        (digits.DIGITS, {"staleness_rate": "inverse"}, "inverse", "--sync_mode=async"),
        (digits.DIGITS, {"num_ps": 3}, "--num_ps=3", "--sync_mode=async; got bsp"),
        (digits.DIGITS, {"error_feedback": True}, "--error_feedback", "--compress"),
        (
            digits.DIGITS,
            {**LAYERWISE, "method": "dgc", "error_feedback": True},
            "--method=dgc",
            "--error_feedback",
        ),
        (
            digits.DIGITS,
            {**LAYERWISE, "method": "dgc", "optimizer": "lars"},
            "--method=dgc",
            "--optimizer=momentum, since it replaces the velocity",
        ),
        (
            imagenette.FINETUNE,
            {**LAYERWISE, "method": "dgc"},
            "--method=dgc",
            "--layer_rates=classifier:10",
        ),
        (
            digits.DIGITS,
            {"compress": "entiremodel", "method": "powersgd"},
            "--method=powersgd",
            "--compress=layerwise",
        ),
        (
            digits.DIGITS,
            {"compress": "entiremodel", "dense_below": 1024},
            "--dense_below=1024",
            "--compress=layerwise",
        ),
        (
            digits.DIGITS,
            {**LAYERWISE, "method": "randomk", "exchange": "sliced"},
            "--method=randomk",
            "--exchange=sliced",
        ),
        (digits.DIGITS, {**LAYERWISE, "sync_every": 2}, "--compress=layerwise", LOCAL),
        (
            digits.DIGITS,
            {"outer_momentum": 0.5},
            "--outer_momentum=0.5",
            "--sync_every above 1 or --qsr_coefficient",
        ),
        (
            digits.DIGITS,
            {"local_velocities": "reset"},
            "--local_velocities=reset",
            "--sync_every above 1 or --qsr_coefficient",
        ),
        (
            digits.DIGITS,
            {"sync_every": 2, "outer_learning_rate": 0.5},
            "outer_learning_rate=0.5 of phase 'train'",
            "--outer_momentum",
        ),
        (
            digits.DIGITS,
            {"lookahead_every": 5, "sync_every": 2},
            "lookahead_every=5 of the recipe digits",
            LOCAL,
        ),
        (
            inception.IMAGENET_BSP,
            {"optimizer": "adamw"},
            "--optimizer=adamw",
            "learning_rate_in_velocity=True of the recipe imagenet_inception_bsp",
        ),
        (
            dataclasses.replace(cifar10.RESNET9, learning_rate_in_velocity=True),
            {"optimizer": "muon"},
            "--optimizer=muon",
            "learning_rate_in_velocity=True of the recipe cifar10_resnet9_24ep",
        ),
        (
            digits.DIGITS,
            {"optimizer": "adamw", "sync_every": 2},
            "--optimizer=adamw",
            LOCAL,
        ),
        (
            cifar10.ALEXNET,
            {"optimizer": "muon"},
            "--optimizer=muon",
            "--model=alexnet",
        ),
        (
            imagenet.TPU_90EP_24K,
            {"optimizer": "muon", **FROZEN},
            "--optimizer=muon",
            "--freeze_batch_norm",
        ),
        (
            digits.DIGITS,
            {"optimizer": "lars", "layer_rates_scale_decay": False},
            "layer_rates_scale_decay=False of phase 'train'",
            "--optimizer=momentum or muon",
        ),
        (digits.DIGITS_MLP, FROZEN, "--freeze_batch_norm", "--model=mlp"),
        (
            digits.DIGITS,
            {"freeze_batch_norm": True},
            "--freeze_batch_norm",
            "--initial_weights",
        ),
        (
            digits.DIGITS,
            {**FROZEN, "recalibration_batches": 10},
            "--freeze_batch_norm",
            "--recalibration_batches=10",
        ),
        (
            digits.DIGITS,
            {**TORCHVISION, "model": "resnet18d"},
            "--resnet_variant=torchvision",
            "a --model among resnet18, resnet34,",
        ),
        (
            digits.DIGITS,
            {**TORCHVISION, "activation": "mish"},
            "--resnet_variant=torchvision",
            "--activation=relu",
        ),
        (
            digits.DIGITS,
            {"target_threshold": 0.2},
            "target_threshold=0.2 of phase 'train'",
            "--loss=binary_cross_entropy; got cross_entropy",
        ),
        (cifar10.RESNET9, BINARY, "--loss=binary_cross_entropy", "--model=resnet9"),
        (cifar10.AIRBENCH94, BINARY, "--loss=binary_cross_entropy", "=airbench94"),
        (cifar10.ALEXNET_BN, BINARY, "--loss=binary_cross_entropy", "=alexnet_bn"),
        (
            dataclasses.replace(imagenette.IMAGENETTE, fixed_gamma=True),
            {},
            "fixed_gamma=True of the recipe imagenette",
            "zero_last_gamma=True",
        ),
        (
            digits.DIGITS,
            {"eval_every": "5", "mode": "train"},
            "--eval_every=5",
            "--mode=train_and_eval; got train",
        ),
        (digits.DIGITS, {"stop_at_top1": 0.7}, "--stop_at_top1=0.7", "--eval_every"),
        *(
            (
                dataclasses.replace(digits.DIGITS, model=model),
                {name: value},
                f"--{name}={value}",
                f"--model among {', '.join(WITH_PARTS)}; got {model}",
            )
            for model in ("resnet9", "resnet20", "inception_bn")
            for name, value in (("activation", "silu"), ("se_ratio", 0.25))
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_flag_and_value(
    recipe, overrides, left, right
):
    sentence = refusal(recipe, **overrides)
    verb = " needs " if " needs " in sentence else " excludes "
    assert left in sentence.partition(verb)[0]
    assert right in sentence.partition(verb)[2]


def test_all_problems_are_named_at_once():
    sentence = refusal(sync_mode="async", ema_decay=0.9, accumulation_steps=2)
    assert "excludes --accumulation_steps=2" in sentence
    assert "excludes --ema_decay=0.9" in sentence
    sentence = refusal(
        global_batch_size=0,
        momentum=math.nan,
        model="vgg",
        eval_every="never",
        train_steps=1,
        train_epochs=1.0,
    )
    for part in (
        *("--train_batch_size", "--momentum", "--model", "--eval_every"),
        "exclude each other",
    ):
        assert part in sentence


def test_what_fits_together_is_allowed():
    resolved(**LAYERWISE, method="dgc")
    resolved(**TORCHVISION, se_ratio=0.25, blur_pool="all")
    resolved(**BINARY, target_threshold=0.2)
    resolved(sync_mode="async", num_ps=3, max_staleness=4, staleness_rate="inverse")
    resolved(compress="none", method="qsgd", ratio=0.1)
    resolved(dataclasses.replace(imagenette.IMAGENETTE, model="inception_bn"))
    # A phase that the run doesn't begin with may freeze the statistics of the first.
    first, second = TWO_PHASES.phases
    frozen = dataclasses.replace(second, freeze_batch_norm=True)
    later = dataclasses.replace(TWO_PHASES, phases=(first, frozen))
    resolved(later)
    assert "--initial_weights" in refusal(later, first_phase=second.name)
    for model in WITH_PARTS:
        resolved(model=model, activation="silu", se_ratio=0.25, blur_pool="all")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**LAYERWISE, "method": "terngrad", "error_feedback": True}, "2.6 times as l"),
        (QSGD, "with 255 states for one l2 norm of all values of a vector"),
        ({**QSGD, "qstates": 7, "qsgd_bucket": 49}, "one l2 norm of 49 values"),
        ({**QSGD, "qsgd_norm": "max", "qstates": 2}, "--qstates below 3"),
        (
            {**QSGD, "qsgd_norm": "max", "qstates": 1, "qsgd_bucket": 64},
            "--qstates below 3",
        ),
        ({**QSGD, "method": "topk"}, ""),
        ({**QSGD, "method": "randomk"}, ""),
        ({**QSGD, "qsgd_norm": "max", "qstates": 7}, ""),
        ({**QSGD, "qstates": 7, "qsgd_bucket": 48}, ""),
    ],
)
def test_error_feedback_needs_a_contraction(settings, words):
    problems = broken(CompressionSettings(**settings))
    assert len(problems) == bool(words)
    assert words in " ".join(problems)


@pytest.mark.parametrize("name", ["method", "dense_below"])
def test_flags_of_compression_need_it(name):
    value = {"method": "qsgd", "dense_below": 9}[name]
    assert f"--{name} has no effect without --compress" in refusal(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "weight_decay",
        "augmentation",
        "peak_learning_rate",
        "base_learning_rate",
        "warmup_steps",
        "warmup_epochs",
    ],
)
def test_what_differs_among_phases_cannot_be_given(name):
    (problem,) = problems_of_overrides(COLLAPSE, {name: 1})
    assert f"--{name} can't be one for the whole run" in problem
    assert "5 phases of collapse_72ep_4k" in problem


def test_what_is_the_same_in_all_phases_can_be_given():
    overrides = {"momentum": 0.8, "image_size": 128, "mixup": 0.2, "train_epochs": 7.0}
    assert problems_of_overrides(COLLAPSE, overrides) == []
    rates = {"peak_learning_rate": 1.0, "warmup_steps": 5}
    assert problems_of_overrides(TWO_PHASES, rates) == []
    assert problems_of_overrides(TPU, {"weight_decay": 1e-4, **rates}) == []


@pytest.mark.parametrize("what", ["train", "warmup"])
def test_steps_and_epochs_exclude_each_other(what):
    overrides = {f"{what}_steps": 300, f"{what}_epochs": 1.0}
    assert problems_of_overrides(TPU, overrides) == [
        f"--{what}_steps and --{what}_epochs exclude each other; got both."
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"momentum": 1.0}, "momentum of phase 'first' must be in [0, 1); got 1.0."),
        ({"image_size": 16}, "image_size of phase 'first' must be in [28, 1024]"),
        ({"augmentation": "blur"}, "augmentation of phase 'first' must be one of"),
        ({"name": "second"}, "must have different names; got second, second."),
        ({"layer_rates": "stem"}, "--layer_rates must be beginnings of layers' names"),
        *(
            ({"schedule": Schedule(**{"peak_value": 1.0, **schedule})}, words)
            for schedule, words in (
                (
                    {"peak_value": math.inf},
                    "at least 1e-30, and finite; got inf",
                ),
                ({"power": 0.0}, "power of the schedule of phase 'first' must be at"),
                ({"warmup_length": -1.0}, "must be at least 0; got -10."),
                ({"decay": "linear"}, "must be one of polynomial, cosine, steps, none"),
                (
                    {"decay": "steps", "boundaries": (2.0, 1.0)},
                    "must ascend and be at least 0; got, in steps, [20, 10]",
                ),
                ({"decay": "steps", "boundaries": (-1.0, 1.0)}, "must ascend and be"),
            )
        ),
    ],
)
def test_values_of_a_phase_are_refused_by_its_name(changes, words):
    phases = (
        RecipePhase(epochs=3, schedule=Schedule(peak_value=1.0), name="first"),
        RecipePhase(epochs=2, schedule=Schedule(peak_value=0.5), name="second"),
    )
    small = dataclasses.replace(
        digits.DIGITS, global_batch_size=4, num_train_examples=40, phases=phases
    )
    assert "--first_phase must be one of first, second; got third." in refusal(
        small, first_phase="third"
    )
    first = dataclasses.replace(phases[0], **changes)
    assert words in refusal(dataclasses.replace(small, phases=(first, phases[1])))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "vgg"}, "model of the recipe digits must be one of resnet"),
        ({"ema_decay": 1.0}, "ema_decay of the recipe digits must be in [0, 1); got 1"),
        ({"batch_norm_epsilon": 0.0}, "batch_norm_epsilon of the recipe digits must"),
        ({"channel_mean": (0.5,)}, "must be three numbers each"),
        ({"channel_stddev": (0.2, 0.2, 0.0)}, "above 0; got"),
    ],
)
def test_values_of_a_recipe_are_refused_by_its_name(changes, words):
    assert words in refusal(dataclasses.replace(digits.DIGITS, **changes))


@pytest.mark.parametrize("model", ["alexnet", "mlp"])
def test_a_network_for_one_image_size_excludes_progressive_sizes(model):
    sentence = refusal(
        imagenette.IMAGENETTE_BEST, model=model, blur_pool="none", optimizer="momentum"
    )
    assert f"{model} needs images of the same size in all phases" in sentence
    assert "got 96, 128, 160, 176 pixels" in sentence
    assert resolved(model=model, image_size=32).image_size == 32


def tpu_with(**changes) -> Config:
    config = resolve(imagenet.TPU_90EP_24K, {}, 1_281_167, ("a", "b"))
    return dataclasses.replace(config, **changes)


@given(batch=st.integers(1, 10**6), num_ranks=st.integers(1, 10**4))
def test_batches_that_ranks_cannot_share_are_refused_with_ones_that_they_can(
    batch, num_ranks
):
    config = tpu_with(global_batch_size=batch)
    if batch % num_ranks == 0:
        check_ranks(config, num_ranks)
        return
    with pytest.raises(UserError) as caught:
        check_ranks(config, num_ranks)
    sentence = str(caught.value)
    assert f"train_batch_size={batch}, {num_ranks} ranks" in sentence
    suggested = sentence.rpartition("Use ")[2].rstrip(".").split(" or ")
    for size in map(int, suggested):
        assert size > 0
        assert abs(size - batch) < num_ranks
        check_ranks(tpu_with(global_batch_size=size), num_ranks)


def test_the_suggested_batches_are_those_next_to_the_one_given():
    with pytest.raises(UserError, match=r"Use 248 or 252\."):
        check_ranks(tpu_with(global_batch_size=250), 4)
    with pytest.raises(UserError, match=r"Use 4\."):
        check_ranks(tpu_with(global_batch_size=3), 4)
    config = tpu_with(global_batch_size=24, accumulation_steps=3)
    check_ranks(config, 4)
    with pytest.raises(UserError, match=r"times --accumulation_steps=3.*Use 15 or 30"):
        check_ranks(config, 5)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_examples_that_are_mixed_come_in_pairs(name):
    sizes = {"global_batch_size": 24, "accumulation_steps": 2}
    mixed = resolved(TPU, **sizes, **{name: 0.2})
    check_ranks(mixed, 3)  # 4 on each rank in each part.
    with pytest.raises(UserError, match=r"even number of examples on each rank.* 3\."):
        check_ranks(mixed, 4)
    check_ranks(resolved(TPU, **sizes), 4)


def test_one_small_image_is_too_little_for_batch_normalization():
    small = resolved(global_batch_size=8)
    check_ranks(small, 4)
    accumulated = dataclasses.replace(small, accumulation_steps=4)
    for config, ranks in [(small, 8), (accumulated, 2)]:
        with pytest.raises(UserError, match="needs at least two values, and the last"):
            check_ranks(config, ranks)
    frozen = dataclasses.replace(small.phases[0], freeze_batch_norm=True)
    check_ranks(dataclasses.replace(small, phases=(frozen,)), 8)
    check_ranks(dataclasses.replace(small, model="resnet20"), 8)  # 8x8 features.
    check_ranks(tpu_with(global_batch_size=8), 8)  # 224 pixels.


def test_a_batch_larger_than_the_data_set_is_refused():
    with pytest.raises(UserError, match="train_batch_size=24576, 1000 examples"):
        check_ranks(tpu_with(num_train_examples=1000), 1)
