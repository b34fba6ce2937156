import dataclasses

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.evaluation import prediction_file
from tests.unit import damaged_bytes
from tests.unit.stored_predictions import predictions


def test_what_is_read_is_what_was_written(tmp_path):
    stored = predictions()
    path = prediction_file.write(tmp_path, "step-00000020", stored)
    assert path == tmp_path / "predictions" / "step-00000020.npz"
    found = prediction_file.read(path)
    for field in dataclasses.fields(stored):
        ours, theirs = getattr(found, field.name), getattr(stored, field.name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()
        else:
            assert ours == theirs
    assert [entry.name for entry in path.parent.iterdir()] == ["step-00000020.npz"]


def test_a_prediction_is_right_if_its_most_probable_class_is_the_label():
    stored = predictions()
    assert stored.is_right.tolist() == [True, False, True, True, True, False]
    stored.top_probabilities[0, 0] = np.nan
    assert not stored.is_right[0]


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "class", "shape"])
def test_what_is_no_such_file_is_refused(tmp_path, damage):
    stored = predictions()
    if damage == "class":
        stored.labels[0] = 3
    if damage == "shape":
        stored = dataclasses.replace(stored, labels=stored.labels[1:])
    path = prediction_file.write(tmp_path, "step", stored)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "text":
        path.write_text("no predictions")
    if damage == "empty":
        path.write_bytes(b"")
    with pytest.raises(UserError, match="must hold predictions"):
        prediction_file.read(path)


def test_a_damaged_byte_is_a_sentence_or_changes_nothing(tmp_path):
    path = prediction_file.write(tmp_path, "step", predictions())
    damaged_bytes.assert_most_are_refused(path, prediction_file.read, 7)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "predictions").touch()
    with pytest.raises(UserError, match="can't be written to"):
        prediction_file.write(tmp_path, "step", predictions())
