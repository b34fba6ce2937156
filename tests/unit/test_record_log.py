import json

import numpy as np
import pytest

from data_prep.errors import UserError
from resnet.metrics.record_log import RecordLog


def test_each_start_and_rank_has_a_file_of_its_own(tmp_path):
    folder = tmp_path / "logs" / "deep"
    for start_step, rank, num_ranks in [(0, 0, 2), (0, 1, 2), (12_345_678, 0, 512)]:
        RecordLog(str(folder), start_step, rank, num_ranks).close()
    assert sorted(path.name for path in folder.iterdir()) == [
        "from-step-00000000-rank-00000-of-00002.jsonl",
        "from-step-00000000-rank-00001-of-00002.jsonl",
        "from-step-12345678-rank-00000-of-00512.jsonl",
    ]


def test_each_step_is_a_line_with_its_examples_and_those_that_stood_in(tmp_path):
    log = RecordLog(str(tmp_path), 7, 0, 1)
    log.write(7, np.array([5, 2**40, 5]), np.array([True, True, True]))
    log.write(8, np.array([1, 2, 3]), np.array([False, True, False]))
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines()  # Before it is closed.
    log.close()
    assert [json.loads(line) for line in lines] == [
        {"step": 7, "examples": [5, 2**40, 5], "replaced": []},
        {"step": 8, "examples": [1, 2, 3], "replaced": [1, 3]},
    ]


def test_a_start_at_the_same_step_begins_its_file_anew(tmp_path):
    for number in (1, 2):
        log = RecordLog(str(tmp_path), 0, 0, 1)
        log.write(0, np.array([number]), np.array([True]))
        log.close()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["examples"] == [2]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RecordLog("", 0, 0, 1)
    log.write(0, np.array([1]), np.array([True]))
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/logs"):
        words = rf"--record_log must be a folder that can be written to; .*{folder}: "
        with pytest.raises(UserError, match=words):
            RecordLog(str(tmp_path / folder), 0, 0, 1)
