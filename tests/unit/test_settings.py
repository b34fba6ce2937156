import dataclasses
import math

import pytest

from resnet.base import settings
from resnet.base.settings import setting


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


def test_a_declared_field_is_an_ordinary_one():
    assert Small() == Small(size=2, kind="a", ratio=0.5)
    assert Small.ratio == 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        Small().kind = "b"  # type: ignore[misc]


def test_the_type_of_a_value_leaves_none_out():
    assert settings.value_type(Base, "size") is int
    assert settings.value_type(Small, "ratio") is float


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
