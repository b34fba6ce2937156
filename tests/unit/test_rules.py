"""What needs or excludes what, how a batch is divided, and what ranges allow."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config import networks, recipe_file, rules
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import digits, imagenet, imagenette
from resnet.config.resolve import resolve
from resnet.config.rules import (
    Excludes,
    broken,
    check_ranks,
    check_start,
    problems_of_overrides,
)
from resnet.config.schedules import Schedule
from tests.unit.resolved_phases import COLLAPSE, TPU, TWO_PHASES

WITH_PARTS = [name for name, row in networks.MODELS.items() if row.has_parts]
LAYERWISE = {"compress": "layerwise"}
HALF_LOCAL = dataclasses.replace(
    digits.DIGITS,
    phases=(
        dataclasses.replace(digits.DIGITS.phases[0], epochs=1),
        RecipePhase(name="apart", epochs=1, sync_every=2),
    ),
)
QSGD = {**LAYERWISE, "method": "qsgd", "error_feedback": True}


def resolved(recipe: Recipe = digits.DIGITS, **overrides) -> Config:
    return resolve(recipe, overrides, recipe.num_train_examples, ("a", "b"))


def refusal(recipe: Recipe = digits.DIGITS, **overrides) -> str:
    with pytest.raises(UserError) as caught:
        resolved(recipe, **overrides)
    return str(caught.value)


def held(term: rules._Term) -> object:
    """Returns a value with which a term holds."""
    default = rules._DEFAULTS[term.name]
    if term.values:
        return {"True": True, "False": False}.get(term.values[0], term.values[0])
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int | float) else "another"


def missed(term: rules._Term) -> object:
    """Returns a value with which it doesn't."""
    if term.values in (("True",), ("False",)):
        return term.values == ("False",)
    return "another" if term.values else rules._DEFAULTS[term.name]


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_rule_is_broken_by_its_terms_and_by_nothing_less(rule):
    names, others, when = map(rules._terms, (rule.names, rule.others, rule.when))
    excludes = isinstance(rule, Excludes)
    without = {term.name: missed(term) for term in (*names, *others, *when)}
    base = {**rules._DEFAULTS, **without, "name": "train", "recipe": "mine"}
    base |= {term.name: held(term) for term in when}
    for name in names:
        first = {**base, name.name: held(name)}
        alone = list(rules._sentences(rule, [first]))
        assert len(alone) == (not excludes)
        for other in others:
            both = {**first, other.name: held(other)}
            sentences = list(rules._sentences(rule, [both]))
            assert len(sentences) == excludes
            for sentence in alone or sentences:
                verb = " excludes " if excludes else " needs "
                left, _, right = sentence.partition(verb)
                assert left == name.refused(first)
                wanted = other.refused(both) if excludes else other.needed()
                assert wanted in right
                assert rule.because in right
            # A phase that the run doesn't begin with counts, unless the rule says so.
            phases = [base, both if excludes else first]
            assert bool(list(rules._sentences(rule, phases))) != rule.in_first_phase
        for term in when:
            unmet = {**first, term.name: missed(term)}
            assert list(rules._sentences(rule, [unmet])) == []


SENTENCES = (
    (
        imagenette.FINETUNE,
        {**LAYERWISE, "method": "dgc"},
        "--method=dgc excludes --layer_rates=classifier:10, since it sends",
    ),
    (
        digits.DIGITS,
        {"lookahead_every": 5, "sync_every": 2},
        "lookahead_every=5 of the recipe digits excludes --sync_every and --qsr_coe",
    ),
    (
        digits.DIGITS,
        {"sync_every": 2, "outer_learning_rate": 0.5},
        "outer_learning_rate=0.5 of phase 'train' needs --outer_momentum.",
    ),
    (
        digits.DIGITS,
        {"model": "resnet20", "se_ratio": 0.25},
        f"needs a --model among {', '.join(WITH_PARTS)}; got resnet20.",
    ),
    (
        digits.DIGITS,
        {**LAYERWISE, "method": "dgc", "sync_every": 2},
        "--method=dgc excludes --sync_every and --qsr_coefficient, since it sends the",
    ),
    (
        HALF_LOCAL,
        LAYERWISE,
        "--compress=layerwise excludes phases with and without local SGD. Leave one of",
    ),
    (
        digits.DIGITS,
        {**QSGD, "kept_values": "2bit"},
        "--kept_values=2bit needs a --method among topk, thresholdv, adapt",
    ),
    (digits.DIGITS, {"method": "qsgd"}, "--method has no effect without --compress"),
)


@pytest.mark.parametrize(("recipe", "overrides", "sentence"), SENTENCES)
def test_what_does_not_fit_together_is_refused_by_flag_and_value(
    recipe, overrides, sentence
):
    assert sentence in refusal(recipe, **overrides)


def test_all_problems_are_named_at_once():
    sentence = refusal(sync_mode="async", ema_decay=0.9, accumulation_steps=2)
    assert "excludes --accumulation_steps=2" in sentence
    assert "excludes --ema_decay=0.9" in sentence
    sentence = refusal(momentum=math.nan, train_steps=1, train_epochs=1.0)
    assert "--momentum" in sentence
    assert "--train_epochs exclude each other" in sentence


def test_what_fits_together_is_allowed():
    resolved(**LAYERWISE, method="dgc")
    resolved(resnet_variant="torchvision", se_ratio=0.25, blur_pool="all")
    resolved(loss="binary_cross_entropy", target_threshold=0.2)
    resolved(sync_mode="async", num_ps=3, max_staleness=4, staleness_rate="inverse")
    resolved(compress="none", method="qsgd", ratio=0.1)
    resolved(dataclasses.replace(imagenette.IMAGENETTE, model="inception_bn"))
    # A phase that the run doesn't begin with may freeze the statistics of the first.
    first, second = TWO_PHASES.phases
    frozen = dataclasses.replace(second, freeze_batch_norm=True)
    later = dataclasses.replace(TWO_PHASES, phases=(first, frozen))
    resolved(later)
    assert "--initial_weights" in refusal(later, first_phase=second.name)


def test_error_feedback_needs_a_contraction():
    for settings, words in (
        ({**QSGD, "method": "terngrad"}, "2.6 times as l"),
        (QSGD, "with 255 states for one l2 norm of all values of a vector"),
        ({**QSGD, "qstates": 7, "qsgd_bucket": 49}, "one l2 norm of 49 values"),
        ({**QSGD, "qsgd_norm": "max", "qstates": 2}, "--qstates below 3"),
        ({**QSGD, "method": "topk"}, ""),
        ({**QSGD, "qsgd_norm": "max", "qstates": 7}, ""),
        ({**QSGD, "qstates": 7, "qsgd_bucket": 48}, ""),
    ):
        problems = broken(CompressionSettings(**settings))
        assert len(problems) == bool(words)
        assert words in " ".join(problems)


@pytest.mark.parametrize("name", ["weight_decay", "warmup_steps"])
def test_what_differs_among_phases_cannot_be_given(name):
    (problem,) = problems_of_overrides(COLLAPSE, {name: 1})
    assert f"--{name} can't be one for the whole run" in problem
    assert "5 phases of collapse_72ep_4k" in problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"momentum": 1.0}, "momentum of phase 'first' must be in [0, 1); got 1.0."),
        ({"name": "second"}, "must have different names; got second, second."),
        ({"layer_rates": "stem"}, "--layer_rates must be beginnings of layers' names"),
        *(
            ({"schedule": Schedule(**{"peak_value": 1.0, **schedule})}, words)
            for schedule, words in (
                (
                    {"power": 0.0},
                    "power of the schedule of phase 'first' must be above 0",
                ),
                (
                    {"decay": "steps", "boundaries": (2.0, 1.0)},
                    "must ascend from 0; got, in steps, [20, 10]",
                ),
                ({"decay": "steps", "boundaries": (-1.0, 1.0)}, "must ascend from 0"),
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
        ({"model": "vgg"}, "model of the recipe digits must be one of the"),
        ({"channel_mean": (0.5,)}, "must be three numbers each"),
        ({"channel_stddev": (0.2, 0.2, 0.0)}, "above 0; got"),
    ],
)
def test_values_of_a_recipe_are_refused_by_its_name(changes, words):
    assert words in refusal(dataclasses.replace(digits.DIGITS, **changes))


def test_a_network_for_one_image_size_excludes_progressive_sizes():
    others = {"blur_pool": "none", "optimizer": "momentum"}
    sentence = refusal(imagenette.IMAGENETTE_BEST, model="alexnet", **others)
    assert "alexnet needs images of the same size in all phases" in sentence
    assert "got 96, 128, 160 pixels" in sentence
    resolved(model="alexnet", image_size=32)


def test_a_recipe_for_trained_weights_needs_them(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text('{"based_on": "finetune", "name": "mine"}')
    for recipe in (imagenette.FINETUNE, recipe_file.read(file)):
        config = resolve(recipe, {}, 9469, ("a", "b"))
        with pytest.raises(UserError, match=f"{recipe.name} .* needs --initial_wei"):
            check_start(recipe, config, 2)
        check_start(recipe, dataclasses.replace(config, initial_weights="RUN"), 2)
    check_start(imagenette.IMAGENETTE, config, 2)


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
    with pytest.raises(UserError, match="train_batch_size=24576, 1000 examples"):
        check_ranks(tpu_with(num_train_examples=1000), 1)
    with pytest.raises(UserError, match=r"Use 248 or 252\."):
        check_ranks(tpu_with(global_batch_size=250), 4)
    with pytest.raises(UserError, match=r"Use 4\."):
        check_ranks(tpu_with(global_batch_size=3), 4)
    few = tpu_with(global_batch_size=8, num_train_examples=10)
    with pytest.raises(UserError, match=r"Use 6\."):  # 12 are more than there are.
        check_ranks(few, 6)
    with pytest.raises(UserError, match=r"got .*16 ranks. Start fewer ranks\."):
        check_ranks(few, 16)
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
