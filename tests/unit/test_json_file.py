"""The reader of JSON files: what it returns, and the sentence of what it refuses."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.config.config import CONFIG_FILE, load_config, save_config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from tests.unit import small_recipe_file

WHAT = "a thing"
DEEP = "[" * 10**5


@dataclass(frozen=True)
class Part:
    factor: float


@dataclass(frozen=True, kw_only=True)
class Thing:
    name: str
    count: int = 1
    length: int | float = 1
    side: int | None = None
    is_on: bool = False
    words: tuple[str, ...] = ()
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = field(default_factory=dict)
    rest: Any = None


@pytest.fixture
def refusal(tmp_path):
    """A function that returns the problem in the sentence about a file."""

    def refusal(contents: object, kind: type | None = Thing) -> str:
        path = tmp_path / "thing.json"
        text = contents if isinstance(contents, str | bytes) else json.dumps(contents)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError) as caught:
            json_file.read(path, kind, WHAT, "Make another.")
        sentence = str(caught.value)
        assert sentence.startswith(f"{path} must hold a thing; ")
        assert sentence.endswith(". Make another.")
        return sentence.removeprefix(f"{path} must hold a thing; ")

    return refusal


def test_what_was_written_is_read(tmp_path):
    thing = Thing(
        name="one",
        count=2**63,
        length=1.5,
        words=("a", "b"),
        part=Part(2.0),
        parts=(Part(0.5),),
        by_name={"x": Part(1.0)},
        rest={"any": [1, None]},
    )
    path = tmp_path / "thing.json"
    path.write_text(json.dumps(dataclasses.asdict(thing)))
    assert json_file.read(path, Thing, WHAT) == thing
    assert json_file.read(path, dict, WHAT)["parts"] == [{"factor": 0.5}]
    assert json_file.parse('{"name": "a", "length": 2}', Thing, "it", WHAT) == Thing(
        name="a", length=2
    )
    assert type(json_file.parse('{"factor": 2}', Part, "it", WHAT).factor) is float


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({"count": 1}, "'name' is missing"),
        ({"name": "a", "number": 1}, "unknown field 'number'; known are name, count,"),
        ({"name": "a", "count": 1.0}, "'count' must be a whole number; got 1.0"),
        ({"name": "a", "count": True}, "'count' must be a whole number; got True"),
        ({"name": "a", "count": 2**64}, "'count' must have at most 64 bits"),
        ({"name": "a", "length": False}, "'length' must be a number; got False"),
        ({"name": "a", "words": "b" * 99}, f"must be a list; got '{'b' * 35}...'. "),
        ({"name": "a", "words": ["b", 2]}, "number 2 of 'words' must be text; got 2"),
        ({"name": "a", "part": 3}, "'part' must be an object, {...}; got 3"),
        ({"name": "a", "parts": [{}]}, "'factor' of number 1 of 'parts' is missing"),
        (
            {"name": "a", "by_name": {"x": {"factor": "1"}}},
            "'factor' of 'x' of 'by_name' must be a number; got '1'",
        ),
        (
            {"name": "a", "part": {"factor": 10**400}},
            f"'factor' of 'part' must be a number; got 1{'0' * 35}...0. ",
        ),
        ('{"name": "a", "count": 1, "name": "b"}', "'name' is given twice"),
        ("[]", "it must be an object, {...}; got []"),
        (f'{{"name": {"9" * 5000}}}', "it isn't JSON"),
        (f'{{"name": {DEEP}}}', "it isn't JSON"),
        ("", "it isn't JSON"),
        (b'{"name": "\xff"}', "it isn't JSON"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_place(refusal, contents, problem):
    assert problem in refusal(contents)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_of_a_dataclass_are_finite(refusal, number):
    text = f'{{"name": "a", "part": {{"factor": {number}}}}}'
    assert f"must be a number; got {float(number)}" in refusal(text)


def test_only_a_missing_file_is_missing(tmp_path):
    with pytest.raises(json_file.MissingFile, match="there is no such file"):
        json_file.read(tmp_path / "none.json", dict, WHAT)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):  # A pipe would wait for a writer.
        with pytest.raises(UserError, match="must hold a thing; it can't be") as caught:
            json_file.read(path, dict, WHAT)
        assert not isinstance(caught.value, json_file.MissingFile)
        assert "Errno" not in str(caught.value)


def test_good_lines_of_a_damaged_log_are_read():
    lines = [b'{"a": 1}', b'{"a": NaN}', b"{}", b"[]", b"\xff", DEEP.encode(), b"{"]
    objects, num_bad = json_file.parse_lines(lines, lambda line: line["a"] != 0)
    assert objects[0] == {"a": 1}
    assert (len(objects), num_bad) == (2, 5)


def damaged(data: bytes, edits: list[tuple[float, bytes]]) -> bytes:
    for position, part in edits:
        place = int(position * len(data))
        data = data[:place] + part + data[place + len(part) :]
    return data


PARTS = st.sampled_from(
    [*(b"{", b"[", b'"', b"NaN", b"1e999", b"null", b"-", b":", b"\xff"), b"9" * 99]
) | st.binary(min_size=1, max_size=4)


@given(st.lists(st.tuples(st.floats(0, 1), PARTS), max_size=4), st.floats(0, 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path, edits, length):
    config = resolve(RECIPES["digits"], {"model_dir": str(tmp_path)}, 1437, ("a", "b"))
    save_config(config)
    file = small_recipe_file.write(tmp_path, small_recipe_file.SMALL)
    for path, read in (
        (tmp_path / CONFIG_FILE, lambda: load_config(str(tmp_path))),
        (file, lambda: recipe_file.read(file)),
    ):
        data = damaged(path.read_bytes(), edits)
        path.write_bytes(data[: max(1, int(length * 2 * len(data)))])
        sentence = str(path)
        try:
            read()
        except UserError as error:
            sentence = str(error)
        assert str(path) in sentence
        assert "\n" not in sentence
