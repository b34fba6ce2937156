import dataclasses
import math

import pytest
from absl import flags

from resnet import setting_flags
from resnet.base import bounds, settings
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
    assert bounds.validate_overrides(overrides, Small) == [
        "--size must be in [1, 8]; got 9.",
        "--kind must be one of a, b; got c.",
        "--how_much must be at least 0; got -1.0.",
    ]


def test_values_are_checked_by_their_own_names():
    assert bounds.problems_of(Small(size=0, ratio=math.nan), "it") == [
        "size of it must be in [1, 8]; got 0.",
        "ratio of it must be at least 0; got nan.",
    ]
    assert bounds.problems_of(Base(size=None), "it") == []


@pytest.fixture
def defined(monkeypatch):
    """Flags that a test defines, by name: default, help and short form."""
    found = {}

    def define(
        name: str,
        default: object,
        help: str,  # noqa: A002
        short_name: str | None,
        flag_values: flags.FlagValues,
    ) -> None:
        assert flag_values is flags.FLAGS
        found[name] = (default, help, short_name)

    for kind in (int, float, str):
        monkeypatch.setitem(setting_flags._DEFINE, kind, define)
    return found


def test_flags_are_those_that_a_class_declares_itself(defined):
    setting_flags.define(Base)
    assert defined == {"kind": (None, "The kind, one of a, b.", None)}
    defined.clear()
    setting_flags.define(Small, has_defaults=True)
    assert defined == {"how_much": (0.5, "The ratio.", "H")}


def test_flags_are_defined_among_those_that_are_given():
    own = flags.FlagValues()
    setting_flags.define(Small, flag_values=own)
    assert "how_much" in own
    assert "how_much" not in flags.FLAGS


def test_flags_can_be_chosen_and_left_out(defined):
    setting_flags.define(Base, names=["size"])
    setting_flags.define(Small, without=["ratio"])
    assert defined == {}


def test_flags_are_counted_among_those_of_the_program():
    from resnet import train_flags  # Defines flags.

    modules = flags.FLAGS.flags_by_module_dict()
    assert "resnet.setting_flags" not in modules
    names = {flag.name for flag in modules[train_flags.__name__]}
    assert {"momentum", "bn_momentum", "train_steps", "seed"} <= names
    assert "min_crop_area" not in names
