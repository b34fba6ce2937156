import pytest

from resnet.base.errors import UserError
from resnet.config import phases

NAMES = (
    "stem/kernel",
    "stage1_block1_1/gamma",
    "stage2_block1_1/kernel",
    "classifier/b",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("stem:1", ()),  # As it is.
        ("stem:0,stage:0.5", (0, 0.5, 0.5, 1)),
        # The longest beginning counts, in any order.
        ("stage2:2, s:1e-3", (0.001, 0.001, 2, 1)),
        # The kind of variable has a factor of its own.
        ("stage:0.5,stem:0,/kernel:64,/gamma:4", (0, 2, 32, 1)),
    ],
)
def test_each_variable_has_the_factor_of_the_longest_beginning(text, expected):
    assert phases.factors_of(text, NAMES) == expected


@pytest.mark.parametrize(
    "text", ["stem", "stem:", ":1", "stem:-1", "stem:nan", "a:1,a:2"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match=f"--layer_rates must be .*; got '{text}'"):
        phases.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stage3:0", r"'stage3'; the layers are stem, .*, stage2_block1_1, classifier"),
        ("/beta:64", "'/beta'; the kinds are /kernel, /gamma, /b"),
    ],
)
def test_a_name_of_nothing_is_refused_with_the_names(text, words):
    with pytest.raises(UserError, match=f"--layer_rates names no .*{words}"):
        phases.factors_of(text, NAMES)
