import json

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.metrics import record_log
from resnet.metrics.record_log import RecordLog


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


def write_log(folder, start_step: int, num_ranks: int) -> None:
    for rank in range(num_ranks):
        log = RecordLog(str(folder), start_step, rank, num_ranks)
        log.write(start_step, np.array([rank]), np.array([True]))
        log.close()


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_resumed_run_removes_the_files_of_the_steps_that_it_does_again(tmp_path):
    (tmp_path / "notes.txt").touch()
    for start_step, num_ranks in [(0, 1), (10, 2), (20, 1)]:
        write_log(tmp_path, start_step, num_ranks)
    record_log.prepare(str(tmp_path), 10, is_first_start=False)
    first = "from-step-00000000-rank-00000-of-00001.jsonl"
    assert names_in(tmp_path) == [first, "notes.txt"]


def test_the_log_of_another_run_is_refused_and_stays(tmp_path):
    RecordLog(str(tmp_path), 0, 0, 1).close()  # Of a start without a step.
    record_log.prepare(str(tmp_path), 0, is_first_start=True)
    assert names_in(tmp_path) == []
    write_log(tmp_path, 30, 2)
    before = names_in(tmp_path)
    with pytest.raises(UserError, match=r"has one\."):
        record_log.prepare(str(tmp_path), 0, is_first_start=True)
    assert names_in(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_a_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/logs"):
        words = rf"--record_log can't be written to; .*{folder}: "
        with pytest.raises(UserError, match=words):
            record_log.prepare(str(tmp_path / folder), 0, is_first_start=True)
        with pytest.raises(UserError, match=words):
            RecordLog(str(tmp_path / folder), 0, 0, 1)
