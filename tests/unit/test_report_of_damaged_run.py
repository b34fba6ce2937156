"""The page of a run whose files are missing, cut, damaged or of another version."""

import json

import numpy as np
import pytest

from resnet.metrics import jsonl
from tests.unit.written_run import (
    Reader,
    make_run,
    small_library,  # noqa: F401 - The fixture.
    text_of,
    words_of,
)


@pytest.mark.parametrize(
    ("tail", "note"),
    [
        ('{"kind": "train", "st', "The last line of metrics.jsonl is incomplete"),
        ("no json\n", "1 line(s) of metrics.jsonl can't be read"),
    ],
)
def test_a_log_that_was_cut_is_shown_as_far_as_it_goes(tmp_path, tail, note):
    make_run(tmp_path)
    with (tmp_path / jsonl.FILE).open("a") as file:
        file.write(tail)
    text = words_of(tmp_path)
    assert note in text
    assert "Top-1 75.00 %" in text


def test_an_empty_folder_has_a_page_that_says_so(tmp_path):
    text = words_of(tmp_path)
    assert "config.json is missing" in text
    assert "metrics.jsonl is missing: the run has logged nothing yet" in text
    assert "There is no checkpoint" in text
    assert "No metrics have been logged yet" in text
    assert "No predictions are stored" in text


@pytest.mark.parametrize(
    "settings",
    ["{", "[1]", '{"model": 7, "phases": [3, {"x": {"y": null}}], "later": [{}]}'],
)
def test_settings_of_another_version_are_shown_as_they_are(tmp_path, settings):
    make_run(tmp_path)
    (tmp_path / "config.json").write_text(settings)
    text = words_of(tmp_path)
    missing = text.index("What is missing")
    assert "config.json" in text[missing : missing + 60]
    assert "Top-1 75.00 %" in text


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "metrics.jsonl", "history.jsonl", "failure.json"),
        *("study.json", "diverged-step-00000003.json", "predictions/x.npz"),
        "checkpoints/step-00000010/checkpoint.json",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 50, b"[]", b"null", b"7\n", b'{"step": "x", "event": 1}\n'),
        b'{"runs": 3, "shared": 4, "kind": "eval", "step": 1, "time": "x"}\n',
    ],
    ids=("empty", "zeros", "list", "null", "number", "event", "others"),
)
def test_no_file_of_a_run_can_end_the_report(tmp_path, name, content):
    make_run(tmp_path, num_lines=3)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    Reader(text_of(tmp_path))


def test_values_that_are_not_finite_are_counted_and_not_drawn(tmp_path):
    make_run(tmp_path)
    with (tmp_path / jsonl.FILE).open("a") as file:
        for step in (410, 420):
            line = {"kind": "train", "step": step, "epoch": 1, "cross_entropy": np.nan}
            file.write(json.dumps(line) + "\n")
    text = text_of(tmp_path)
    assert "2 value(s) are not finite and not drawn" in text
    assert "NaN" not in text
