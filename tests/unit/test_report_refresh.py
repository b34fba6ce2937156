import importlib.metadata
import json
import os
import threading
import time
from pathlib import Path

import pytest

from resnet.base import intervals
from resnet.report import folder, page, refresh


def append_step(path: Path, step: int) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"kind": "train", "step": step}) + "\n")


@pytest.fixture
def written(monkeypatch) -> list[int]:
    """The last step that the log has whenever a page is written."""
    found: list[int] = []

    def write(model_dir: Path) -> None:
        found.append(refresh.last_step(model_dir / "metrics.jsonl"))

    monkeypatch.setattr(refresh, "write", write)
    return found


def test_a_page_is_written_when_it_is_due_and_at_the_end(
    tmp_path, written, monkeypatch
):
    looks: list[int] = []
    last_step = refresh.last_step

    def look(path: Path) -> int:
        looks.append(last_step(path))
        return looks[-1]

    monkeypatch.setattr(refresh, "last_step", look)
    reading, writing = os.pipe()
    interval = intervals.parse("10steps", "--report_every")
    thread = threading.Thread(
        target=refresh.keep_fresh, args=(tmp_path, interval, (100, 4), reading, 0.01)
    )
    thread.start()
    for step in (5, 12, 19, 21):
        append_step(tmp_path / "metrics.jsonl", step)
        deadline = time.monotonic() + 60
        while looks.count(step) < 3:  # The first may write, which is the second.
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.close(writing)
    thread.join(60)
    os.close(reading)
    assert written == [12, 21, 21]


def test_the_last_step_is_that_of_the_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert refresh.last_step(path) == 0
    append_step(path, 7)
    with path.open("a") as file:
        file.write('{"kind": "train", "step": 8')
    assert refresh.last_step(path) == 7
    path.write_text("no json\n")
    assert refresh.last_step(path) == 0


@pytest.mark.parametrize("every", ["", "1000epochs"])
def test_the_process_ends_with_the_block_and_writes_a_page(
    tmp_path, make_config, monkeypatch, index_cache, every
):
    monkeypatch.setattr(refresh, "_LAST_SECONDS", 300)  # It has the lowest priority.
    version = importlib.metadata.version("vl-convert-python")
    (index_cache / "charts").mkdir(parents=True)  # It would take it seconds to make it.
    (index_cache / "charts" / f"vega-{version}.js").write_text("window.vegaEmbed = 0;")
    config = make_config(model_dir=str(tmp_path), report_every=every)
    with refresh.kept_fresh(config, is_writer=True):
        assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "report.html").exists() == bool(every)


@pytest.mark.parametrize("is_writer", [False, True])
def test_other_ranks_and_a_process_that_cannot_start_write_nothing(
    tmp_path, make_config, monkeypatch, is_writer
):
    monkeypatch.setattr(refresh.sys, "executable", str(tmp_path / "none"))
    config = make_config(model_dir=str(tmp_path), report_every="1steps")
    with refresh.kept_fresh(config, is_writer):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_leaves_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "write", lambda paths, out: 1 / 0)
    refresh.write(tmp_path)
    assert "ZeroDivisionError" in (tmp_path / "report.log").read_text()


def test_folders_of_the_same_name_are_told_apart():
    paths = [Path("/a/x/model"), Path("/a/y/model")]
    assert folder.names_of(paths) == ["x/model", "y/model"]
    assert folder.names_of(paths[:1]) == ["model"]
    assert folder.names_of([paths[0], paths[0]])[1].endswith("x/model (2)")
