import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from resnet.base.errors import UserError
from resnet.config import class_weights

NAMES = ("cat", "dog", "fish, dried")


@given(counts=st.lists(st.integers(0, 10**6), min_size=1).filter(any))
def test_weights_follow_from_the_numbers_of_examples_and_keep_the_scale(counts):
    names, numbers = list(map(str, counts)), np.array(counts, np.float64)
    has_examples = numbers > 0
    for how, power in (("balanced", 1), ("root", 0.5)):
        weights = np.array(class_weights.resolve(how, names, counts))
        assert (weights[~has_examples] == 1).all()
        assert np.average(weights, weights=numbers) == pytest.approx(1)
        products = (weights * numbers**power)[has_examples]
        np.testing.assert_allclose(products, products[0])
    assert class_weights.resolve("none", names, counts) == ()


def test_balanced_is_that_of_scikit_learn():
    counts = [5, 1, 4, 0]  # 10 / (3 * 5), 10 / (3 * 1), 10 / (3 * 4).
    labels = np.repeat(np.arange(4), counts)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    weights = class_weights.resolve("balanced", "abcd", counts)
    assert weights == pytest.approx([*expected, 1])
    assert class_weights.describe(weights, "abcd") == ("from 0.6667 (a) to 3.333 (b)")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("w.json", json.dumps({"dog": 2, "cat": 0.5, "fish, dried": 3})),
        ("w.csv", '\ufeffclass,weight\r\ndog,2\r\n\r\ncat,.5\r\n"fish, dried", 3'),
        ("w.txt", 'cat, 0.5\ndog, 2\n"fish, dried",3e0\n'),
    ],
)
def test_a_file_names_the_weight_of_each_class_in_any_order(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    weights = class_weights.resolve(str(tmp_path / name), NAMES, [1, 1, 1])
    assert weights == (0.5, 2.0, 3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must hold a weight for each class by its name.*No such file.*balanced"),
        ("cat,1\ndog,2", "the weight of 'fish, dried' is missing"),
        ("cat,1\ncat,1", "'cat' stands twice"),
        ("cat,1\nhorse,1", "'horse' is no class of the data"),
        ("cat,1,2", "line 1 has 3 columns instead of two"),
        ("cat,many", "weight of 'cat' must be a number of at least 0; got 'many'"),
        ("cat,inf", "got 'inf'"),
        ("cat,-1", "got '-1'"),
        ("\xff", "no CSV in UTF-8"),
        ('cat,0\ndog,0\n"fish, dried",0', "all weights are 0"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, text, words):
    path = tmp_path / "w.csv"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=words):
        class_weights.resolve(str(path), NAMES, [1, 1, 1])


@pytest.mark.parametrize("value", [None, [1], float("nan"), {}])
def test_a_weight_in_json_must_be_a_number(tmp_path, value):
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"cat": value, "dog": 1}))
    with pytest.raises(UserError, match="'cat' must be a number of at least 0; got"):
        class_weights.resolve(str(path), ("cat", "dog"), [1, 1])
