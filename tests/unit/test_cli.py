"""Flags from dataclasses, their values and the text of --help."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
from absl import logging

from resnet.base import cli
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting


@dataclass(frozen=True, kw_only=True)
class Length:
    TOPIC: ClassVar[str] = "Time"

    steps: int = setting(
        10, "The steps.", bounds=COUNT, common=True, elsewhere="length max_steps"
    )
    every: str = setting("", "How often.", interval_units="steps", unset="never")
    nodes: tuple[int, ...] = setting((1, 2), "The nodes.")


@dataclass(frozen=True, kw_only=True)
class Way:
    ratio: float | None = setting(None, "A ratio.", short_flag="K", bounds=(0, 1))
    way: str = setting("a", "A way.", names=("a", "b"), synonyms=(("alpha", "a"),))
    size: int = setting(3, "A size.", flag="image_size", aliases=(("side", "n"),))
    quick: bool = setting(False, "Be quick. " + 12 * "word ", common=True)
    secret: int = setting(0, "Nothing.", hidden=True)
    inner: int = setting(0, "No flag.", flag=None)


def parse(*words: str, groups=(Length, Way), **options) -> cli.CommandLine:
    return cli.parse(["program", *words], "It does.\n", groups, **options)


def test_values_are_typed_and_those_not_given_are_the_defaults():
    line = parse("--every=5 steps", "--nodes=4,8", "-K", "0.5", "--quick", "--way=b")
    assert line.of(Length) == Length(every="5 steps", nodes=(4, 8))
    assert line.of(Way) == Way(ratio=0.5, quick=True, way="b")
    assert line.overrides(Way) == {"ratio": 0.5, "quick": True, "way": "b"}
    assert line.given["ratio"] == "--ratio=0.5"


def test_other_names_of_flags_and_values_are_accepted():
    assert parse("--side=7").of(Way).size == parse("-n", "7").of(Way).size == 7
    assert parse("--image_size=8", "--way=alpha").of(Way) == Way(size=8)


def test_a_path_in_the_home_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert parse("--every=", "--way=a", "~/x", takes_arguments=True).arguments == (
        "~/x",
    )
    groups = (dataclasses.make_dataclass("P", [("out", str, setting("", "A file."))]),)
    assert parse("--out=~/x", groups=groups).values["out"] == "/home/me/x"


def test_a_recipe_supplies_what_is_not_given():
    groups = (cli.Flags(Length, has_defaults=False),)
    line = parse("--steps=3", groups=groups)
    assert line.values == {"steps": 3, "every": None, "nodes": None}


def test_the_first_of_two_flags_with_one_name_counts_and_kinds_can_be_cut():
    groups = (cli.Flags(Way, names=("size",)), cli.Flags(Length, without=("steps",)))
    assert set(parse(groups=groups).values) == {"size", "every", "nodes"}


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--steps=0", "--steps must be at least 1; got 0"),
        ("--steps=x", "--steps must be a whole number; got 'x'"),
        ("--ratio=nan", "--ratio must be in [0, 1]; got nan"),
        ("--quick=maybe", "--quick must be true or false; got 'maybe'"),
        ("--way=c", "--way must be one of a, b; got c"),
        ("--every=x", "--every must be a number of steps"),
        ("--nodes=1,x", "--nodes must be whole numbers"),
        ("--stepz=1", "no flag --stepz. Did you mean --steps?"),
        ("--size=1", "Did you mean --image_size?"),
        ("--length=1", "Did you mean --steps?"),
        ("--lenght=1", "Did you mean --steps?"),
        ("--zzz=1", "there is no flag --zzz. --help lists the flags."),
        ("word", "expected only flags"),
    ],
)
def test_what_is_wrong_is_one_sentence(word, problem):
    with pytest.raises(UserError) as caught:
        parse(word)
    assert problem in str(caught.value)


def test_all_values_out_of_their_bounds_are_named():
    with pytest.raises(UserError, match=r"--steps .* --ratio"):
        parse("--steps=0", "--ratio=2")


def test_quiet_lowers_the_verbosity_of_the_log_and_never_raises_it():
    before = logging.get_verbosity()
    try:
        for words, verbosity, expected in (
            ((), logging.INFO, logging.INFO),
            (("--quiet",), logging.INFO, logging.WARNING),
            (("--quiet",), logging.ERROR, logging.ERROR),
        ):
            logging.set_verbosity(verbosity)
            parse(*words, groups=(cli.OutputSettings,))
            assert logging.get_verbosity() == expected
    finally:
        logging.set_verbosity(before)


def test_help_lists_common_flags_by_topic_and_helpfull_all(capsys):
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert end.value.code == 0
    assert capsys.readouterr().out == (
        "It does.\n\n"
        "Time:\n"
        "  --steps: The steps. (default: 10)\n\n"
        "Flags:\n"
        "  --[no]quick: Be quick. word word word word word word word word word word"
        " word\n"
        "      word\n\n"
        "--helpfull lists 5 more.\n"
    )
    with pytest.raises(SystemExit):
        parse("--helpfull")
    full = capsys.readouterr().out
    assert "  --way: A way. One of a, b. (default: a)\n" in full
    assert "-K,--ratio: A ratio." in full
    assert "(default: 1, 2)" in full
    assert "secret" not in full
    assert "more." not in full
    assert max(map(len, full.splitlines())) <= cli.WIDTH


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        parse("--version")
    assert capsys.readouterr().out.startswith("resnet-cpu ")
