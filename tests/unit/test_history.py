import time

from resnet.watchdog import history


def test_events_stay_in_their_order(tmp_path):
    history.append(tmp_path, "start", step=0, hosts={"a": 2})
    history.append(tmp_path, "end", reason="done")
    events, num_unreadable = history.read(tmp_path)
    assert num_unreadable == 0
    assert [event["event"] for event in events] == ["start", "end"]
    assert events[0]["hosts"] == {"a": 2}
    assert abs(events[1]["time"] - time.time()) < 60


def test_lines_that_are_no_events_are_counted(tmp_path):
    history.append(tmp_path, "start")
    with (tmp_path / history.FILE).open("a") as file:
        file.write('7\n{"event": 1, "time": 2}\n{"event": "start"}\n{"event": "en')
    events, num_unreadable = history.read(tmp_path)
    assert (len(events), num_unreadable) == (1, 4)


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    history.append(tmp_path / "gone", "start")
    assert history.read(tmp_path / "gone") == ([], 0)
