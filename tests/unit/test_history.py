"""What a run's folder keeps of its starts, ends and failures."""

import json
import time

import pytest

from resnet.watchdog import history


def test_events_stay_in_their_order_a_line_each(tmp_path):
    history.append(tmp_path, "start", step=0, hosts={"a": 2})
    for step in (3, 7):
        history.write_failure(tmp_path, f"rank 1 has died\nwhile computing step {step}")
        history.remove_failure(tmp_path)
    history.append(tmp_path, "end", reason="done")
    events, num_unreadable = history.read(tmp_path)
    assert num_unreadable == 0
    assert [(event["event"], event.get("step")) for event in events] == [
        ("start", 0),
        ("failure", 3),
        ("failure", 7),
        ("end", None),
    ]
    assert events[0]["hosts"] == {"a": 2}
    assert abs(events[-1]["time"] - time.time()) < 60
    lines = (tmp_path / history.FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == events


def test_lines_that_are_no_events_are_counted(tmp_path):
    history.append(tmp_path, "start")
    with (tmp_path / history.FILE).open("a") as file:
        file.write('7\n{"event": 1, "time": 2}\n{"event": "start"}\n{"event": "en')
    events, num_unreadable = history.read(tmp_path)
    assert (len(events), num_unreadable) == (1, 4)
    history.append(tmp_path, "end")  # A line of its own.
    assert [event["event"] for event in history.read(tmp_path)[0]] == ["start", "end"]


def test_a_folder_that_takes_no_file_is_no_error(tmp_path):
    history.append(tmp_path / "gone", "start")
    assert history.read(tmp_path / "gone") == ([], 0)
    (tmp_path / "file").touch()
    history.write_failure(tmp_path / "file" / "run", "a reason")
    history.write_failure(tmp_path / "new" / "run", "a reason")  # Which is made.
    assert history.read_failure(tmp_path / "new" / "run")["reason"] == "a reason"


@pytest.mark.parametrize(
    ("reason", "step", "is_locked"),
    [
        ("rank 1 on a has died while computing step 12: it was killed", 12, False),
        ("the loss of step 7 is not finite on rank 3", 7, False),
        ("rank 1 on step9 has died while starting", None, True),
    ],
)
def test_a_failure_names_its_step(tmp_path, reason, step, is_locked):
    history.write_failure(tmp_path, reason, is_locked, ["node1"])
    failure = history.read_failure(tmp_path)
    assert (failure["step"], failure["reason"]) == (step, reason)
    assert (failure["locked"], failure["hosts"]) == (is_locked, ["node1"])
    ((event,), _) = history.read(tmp_path)
    assert event["event"] == ("refusal" if is_locked else "failure")
    history.remove_failure(tmp_path)
    history.remove_failure(tmp_path)
    assert history.read_failure(tmp_path) is None
    (tmp_path / history.FAILURE_FILE).write_text('{"step": 1')
    assert history.read_failure(tmp_path) is None
