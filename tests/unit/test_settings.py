"""Declarations of settings, and what their bounds allow and refuse."""

import dataclasses
import math

import pytest

from resnet.base import settings
from resnet.base.errors import UserError
from resnet.base.settings import declarations, setting
from resnet.config.config import Config
from resnet.config.recipes import imagenet
from resnet.config.resolve import OVERRIDABLE, resolve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    size: int | None = setting(None, "The size.", bounds=(1, 8), flag=None)
    kind: str = setting("a", "The kind, one of {names}.", names=("a", "b"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small(Base):
    size: int = 2
    ratio: float = setting(
        0.5, "The ratio.", bounds=(0, math.inf), flag="how_much", short_flag="H"
    )
    plain: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Other:
    size: int = setting(4, "The size of another thing.")


def test_declarations_are_those_of_a_class_and_its_bases():
    declared = settings.declarations(Small)
    assert list(declared) == ["size", "kind", "ratio"]
    assert declared["ratio"].help == "The ratio."
    assert declared["size"].bounds == (1, 8)  # Small only changes the default.


def test_of_two_declarations_of_a_name_the_one_with_a_flag_counts():
    assert settings.declarations(Small, Other)["size"].flag == ""
    assert settings.declarations(Other, Small)["size"].flag == ""


def test_overrides_are_checked_by_the_names_of_their_flags():
    overrides = {"size": 9, "kind": "c", "ratio": -1.0, "unknown": 3}
    assert settings.validate_overrides(overrides, Small) == [
        "--size must be in [1, 8]; got 9.",
        "--kind must be one of a, b; got c.",
        "--how_much must be at least 0; got -1.0.",
    ]


def test_values_are_checked_by_their_own_names():
    assert settings.problems_of(Small(size=0, ratio=math.nan), "it") == [
        "size of it must be in [1, 8]; got 0.",
        "ratio of it must be at least 0; got nan.",
    ]
    assert settings.problems_of(Base(size=None), "it") == []


def resolved(**overrides) -> Config:
    return resolve(imagenet.TPU_90EP_24K, overrides, 1_281_167, ("a", "b"))


def refusal(**overrides) -> str:
    with pytest.raises(UserError) as caught:
        resolved(**overrides)
    return str(caught.value)


def test_what_is_beyond_the_bounds_of_a_setting_is_refused_by_its_flag():
    for name, declaration in declarations(*OVERRIDABLE).items():
        if declaration.bounds:
            low, high = declaration.bounds
            for value in (math.nan, math.inf, -math.inf, low - 1, 2 * high + 1):
                flag = declaration.flag or name
                assert f"--{flag} must be " in refusal(**{name: value})
            for value in {low, min(high, 1e300)}:
                assert settings.problems_of_value(value, "--it", declaration) == []
        if declaration.names:
            assert "must be one of " in refusal(**{name: "another"})


def test_a_value_that_is_not_allowed_is_refused_by_its_flag():
    for name, value, sentence in (
        ("ema_decay", 1.0, "--ema_decay must be in [0, 1); got 1.0."),
        (
            "ema_decay",
            90.0,
            "--ema_decay must be in [0, 1); got 90.0. For 90 %, give 0.9.",
        ),
        ("checkpoint_every", "daily", "--checkpoint_every must be a number of steps"),
        ("eval_every", "10minutes", "--eval_every must be a number of steps or epochs"),
    ):
        assert sentence in refusal(**{name: value})
