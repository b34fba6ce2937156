"""The bounds of settings, by the flags that the sentences name."""

import math

import pytest

from resnet.base.errors import UserError
from resnet.base.settings import declarations
from resnet.config.config import Config
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, resolve


def resolved(**overrides) -> Config:
    return resolve(imagenet.TPU_90EP_24K, overrides, 1_281_167, ("a", "b"))


def refusal(**overrides) -> str:
    with pytest.raises(UserError) as caught:
        resolved(**overrides)
    return str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e30])
def test_no_number_is_unbounded(value):
    for name, declaration in declarations(*OVERRIDABLE).items():
        if declaration.bounds:
            flag = declaration.flag or name
            assert f"--{flag} must be " in refusal(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("weight_decay", -1.0, "--weight_decay must be at least 0; got -1.0."),
        ("ema_decay", 1.0, "--ema_decay must be in [0, 1); got 1.0."),
        ("train_steps", 0, "--train_steps must be at least 1; got 0."),
        ("global_batch_size", 0, "--train_batch_size must be at least 1; got 0."),
        ("image_size", 27, "--image_size must be in [28, 1024]; got 27."),
        ("seed", 2**63, "--seed must be in [0, 9.22337e+18]"),
        ("max_staleness", -2, "--max_staleness must be at least -1; got -2."),
        ("sync_mode", "ssp", "--sync_mode must be one of bsp, async; got ssp."),
        (
            "checkpoint_every",
            "daily",
            "--checkpoint_every must be a number of steps",
        ),
        (
            "eval_every",
            "10minutes",
            "--eval_every must be a number of steps or epochs",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_its_flag(name, value, sentence):
    assert sentence in refusal(**{name: value})


@pytest.mark.parametrize(
    "overrides",
    [
        {"momentum": 0.0, "label_smoothing": 0.0, "weight_decay": 0.0},
        {"min_crop_area": 1.0, "eval_crop_fraction": 1.0, "eval_every": ""},
        {"stop_at_top1": 1.0, "eval_every": "1"},
        {"random_augment": 10.0, "clip_norm": 0.0, "ema_decay": 0.0},
        {"image_size": 1024, "seed": 2**63 - 1, "num_parallel_calls": 4096},
    ],
)
def test_the_bounds_themselves_are_allowed(overrides):
    config = resolved(**overrides)
    (phase,) = config.phases
    for name, value in overrides.items():
        assert getattr(phase, name, getattr(config, name, None)) == value


def test_a_warm_up_may_begin_at_zero_but_not_end_there():
    (phase,) = resolved(base_learning_rate=0.0, peak_learning_rate=1.0).phases
    assert (phase.schedule.init_value, phase.schedule.peak_value) == (0.0, 1.0)
    # The peak would be as many times the recipe's as the start is.
    (phase,) = resolved(base_learning_rate=0.0).phases
    assert phase.schedule.peak_value == resolved().phases[0].schedule.peak_value
