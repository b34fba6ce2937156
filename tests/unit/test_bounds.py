import dataclasses
import math

import pytest

from resnet.base.errors import UserError
from resnet.base.settings import declarations
from resnet.config.config import Config
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, resolve
from resnet.config.schedules import Schedule

PHASES = (
    RecipePhase(epochs=3, schedule=Schedule(peak_value=1.0), name="first"),
    RecipePhase(epochs=2, schedule=Schedule(peak_value=0.5), name="second"),
)
SMALL = Recipe(
    name="small",
    source="here",
    model="resnet18",
    image_size=32,
    global_batch_size=4,
    num_train_examples=40,
    phases=PHASES,
)


def resolved(recipe: Recipe = imagenet.TPU_90EP_24K, **given) -> Config:
    return resolve(recipe, given, recipe.num_train_examples, ("a", "b"))


def refusal(recipe: Recipe = imagenet.TPU_90EP_24K, **given) -> str:
    with pytest.raises(UserError) as caught:
        resolved(recipe, **given)
    return str(caught.value)


NUMBERS = {
    # Field: (flag, refused values besides NaN and infinity).
    "image_size": ("image_size", [27, 0, -1, 1025]),
    "global_batch_size": ("train_batch_size", [0, -1]),
    "eval_batch_size": ("eval_batch_size", [0, -5]),
    "accumulation_steps": ("accumulation_steps", [0, -1]),
    "train_steps": ("train_steps", [0, -1]),
    "train_epochs": ("train_epochs", [0.0, -1.0]),
    "warmup_steps": ("warmup_steps", [-1]),
    "warmup_epochs": ("warmup_epochs", [-0.5]),
    "base_learning_rate": ("base_learning_rate", [-0.1]),
    "peak_learning_rate": ("peak_learning_rate", [0.0, -0.1]),
    "momentum": ("momentum", [-0.1, 1.0]),
    "weight_decay": ("weight_decay", [-1e-9]),
    "trust_coefficient": ("trust_coefficient", [0.0, -1.0]),
    "clip_norm": ("clip_norm", [-0.5]),
    "ema_decay": ("ema_decay", [-0.1, 1.0]),
    "batch_norm_momentum": ("bn_momentum", [-0.1, 1.0]),
    "label_smoothing": ("label_smoothing", [-0.1, 1.0]),
    "target_threshold": ("target_threshold", [-0.1, 1.0]),
    "se_ratio": ("se_ratio", [-0.1, 1.01]),
    "min_crop_area": ("min_crop_area", [0.0, -0.5, 1.01]),
    "random_augment": ("random_augment", [-1.0, 10.5]),
    "mixup": ("mixup", [-0.1]),
    "cutmix": ("cutmix", [-0.1]),
    "eval_crop_fraction": ("eval_crop_fraction", [0.0, -1.0, 1.01]),
    "stop_after_steps": ("stop_after_steps", [-1]),
    "stop_at_top1": ("stop_at_top1", [-0.1, 1.01, 76.0]),
    "recalibration_batches": ("recalibration_batches", [-1]),
    "seed": ("seed", [-1, 2**63]),
    "log_step_count_steps": ("log_step_count_steps", [0, -1]),
    "keep_checkpoints": ("keep_checkpoints", [0, -1]),
    "num_parallel_calls": ("num_parallel_calls", [-1, 4097]),
    "decoded_cache_mb": ("decoded_cache_mb", [-1]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, (_, values) in NUMBERS.items()
        for value in [*values, math.nan, math.inf, -math.inf]
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_flag(name, value):
    sentence = refusal(**{name: value})
    assert sentence.startswith(f"--{NUMBERS[name][0]} must be ")
    assert sentence.endswith(f"got {value}.")


def test_the_sentence_says_the_range():
    assert refusal(weight_decay=-1.0) == "--weight_decay must be at least 0; got -1.0."
    assert refusal(ema_decay=1.0) == "--ema_decay must be in [0, 1); got 1.0."
    assert refusal(train_steps=0) == "--train_steps must be at least 1; got 0."


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.0, "label_smoothing": 0.0, "weight_decay": 0.0},
        {"min_crop_area": 1.0, "eval_crop_fraction": 1.0},
        {"stop_at_top1": 1.0, "eval_every": "1"},
        {"random_augment": 10.0, "clip_norm": 0.0, "ema_decay": 0.0},
        {"image_size": 1024, "seed": 2**63 - 1, "num_parallel_calls": 4096},
        {"image_size": 32, "warmup_steps": 0},
    ],
)
def test_the_bounds_themselves_are_allowed(given):
    config = resolved(**given)
    (phase,) = config.phases
    for name, value in given.items():
        if name == "warmup_steps":
            assert phase.schedule.warmup_length == value
        else:
            assert getattr(phase, name, getattr(config, name, None)) == value


def test_a_warm_up_may_begin_at_zero_but_not_end_there():
    (phase,) = resolved(base_learning_rate=0.0, peak_learning_rate=1.0).phases
    assert (phase.schedule.init_value, phase.schedule.peak_value) == (0.0, 1.0)
    # The peak would be as many times the recipe's as the start is.
    (phase,) = resolved(base_learning_rate=0.0).phases
    assert phase.schedule.peak_value == resolved().phases[0].schedule.peak_value


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "augmentation",
        "optimizer",
        "precision",
        "mode",
        "eval_crop",
        "shard_by",
        "on_bad_record",
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    sentence = refusal(**{name: "mean"})
    assert sentence.startswith(f"--{name} must be one of ")
    assert sentence.endswith("got mean.")
    for known in declarations(*OVERRIDABLE)[name].names:
        assert known in sentence


@pytest.mark.parametrize(
    ("name", "value", "units"),
    [
        ("checkpoint_every", "daily", "steps, epochs or minutes"),
        ("eval_every", "daily", "steps or epochs"),
        ("eval_every", "10minutes", "steps or epochs"),
    ],
)
def test_an_interval_that_is_none_is_refused_by_its_flag(name, value, units):
    sentence = refusal(**{name: value})
    assert sentence.startswith(f"--{name} must be a number of {units}, such as ")
    assert sentence.endswith(f"got {value!r}.")


def test_evaluation_at_the_end_only_needs_no_interval():
    assert resolved(eval_every="").eval_every == ""


def test_all_problems_are_named_at_once():
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


def with_first(**changes) -> Recipe:
    """Returns a recipe with another first phase."""
    first, second = PHASES
    changed = dataclasses.replace(first, **changes)
    return dataclasses.replace(SMALL, phases=(changed, second))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("momentum", 1.0, "in [0, 1)"),
        ("weight_decay", -1.0, "at least 0"),
        ("label_smoothing", 1.0, "in [0, 1)"),
        ("image_size", 16, "in [28, 1024]"),
        ("mixup", -0.2, "at least 0"),
        ("cutmix", -1.0, "at least 0"),
    ],
)
def test_a_number_of_a_phase_is_refused_by_its_name(name, value, allowed):
    assert refusal(with_first(**{name: value})) == (
        f"{name} of phase 'first' must be {allowed}; got {value}."
    )


@pytest.mark.parametrize(
    ("name", "value"), [("min_crop_area", 0.0), ("random_augment", 10.5)]
)
def test_a_number_up_to_a_bound_of_a_phase_is_refused_too(name, value):
    sentence = refusal(with_first(**{name: value}))
    assert sentence.startswith(f"{name} of phase 'first' must be in [")
    assert sentence.endswith(f"got {value}.")


def test_an_unknown_augmentation_of_a_phase_is_refused():
    sentence = refusal(with_first(augmentation="blur"))
    assert sentence.startswith("augmentation of phase 'first' must be one of random_")
    assert sentence.endswith("got blur.")


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (
            Schedule(peak_value=0.0),
            "peak_value of the schedule of phase 'first' must be at least 1e-30; got",
        ),
        (Schedule(peak_value=math.inf), "must be at least 1e-30, and finite; got inf."),
        (
            Schedule(peak_value=1.0, init_value=-0.5),
            "init_value of the schedule of phase 'first' must be at",
        ),
        (
            Schedule(peak_value=1.0, end_value=-0.5),
            "end_value of the schedule of phase 'first' must be at least 0",
        ),
        (
            Schedule(peak_value=1.0, power=0.0),
            "power of the schedule of phase 'first' must be at",
        ),
        (
            Schedule(peak_value=1.0, decay_factor=-1.0),
            "decay_factor of the schedule of phase 'first'",
        ),
        (
            Schedule(peak_value=1.0, warmup_length=-1.0),
            "warmup_length of the schedule of phase 'first' must be at least 0; got -"
            "10.",
        ),
        (
            Schedule(peak_value=1.0, decay="linear"),
            "decay of the schedule of phase 'first' must be one of polynomial, cosine,"
            " steps, none; got linear.",
        ),
        (
            Schedule(peak_value=1.0, decay="steps", boundaries=(2.0, 1.0)),
            "must ascend and be at least 0; got, in steps, [20, 10]",
        ),
        (
            Schedule(peak_value=1.0, decay="steps", boundaries=(-1.0, 1.0)),
            "boundaries of the schedule of phase 'first' must ascend and be at least",
        ),
    ],
)
def test_rates_of_a_phase_are_refused_by_their_names(schedule, words):
    assert words in refusal(with_first(schedule=schedule))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model", "vgg", "model of the recipe small must be one of resnet"),
        ("optimizer", "adam", "optimizer of the recipe small must be one of momentum"),
        ("ema_decay", 1.0, "ema_decay of the recipe small must be in [0, 1); got 1.0."),
        ("clip_norm", -1.0, "clip_norm of the recipe small must be at least 0; got"),
        (
            "batch_norm_momentum",
            1.0,
            "batch_norm_momentum of the recipe small must be in",
        ),
        ("eval_crop", "middle", "eval_crop of the recipe small must be one of crop_"),
    ],
)
def test_settings_of_a_recipe_are_refused_by_its_name(name, value, words):
    assert words in refusal(dataclasses.replace(SMALL, **{name: value}))


def test_phases_need_names_of_their_own():
    assert refusal(with_first(name="second")) == (
        "the phases of a recipe must have different names; got second, second."
    )


def test_a_first_phase_that_is_none_is_refused_with_those_that_are():
    assert refusal(SMALL, first_phase="third") == (
        "--first_phase must be one of first, second; got third."
    )
    assert resolved(SMALL, first_phase="second").first_phase == "second"
