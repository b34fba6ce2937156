"""Folders of runs, written without training, and their pages as tests read them."""

import html.parser
import json
from pathlib import Path

import pytest

from resnet.checkpoint import integrity, step_dirs
from resnet.config.config import save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.metrics.table import RANK_SPEEDS
from resnet.report import charts, folder, page

_VOID = {"img", "meta"}


def make_run(
    path: Path,
    class_names=("a", "b", "c"),
    num_lines: int = 40,
    top1: float | None = 0.75,
    **changes,
) -> None:
    """Writes the folder of a run that has trained to its end; None: not evaluated."""
    overrides = {"model_dir": str(path), "train_steps": 10 * num_lines, **changes}
    config = resolve(digits.DIGITS, overrides, 1437, tuple(class_names))
    save_config(config)
    lines = []
    for number in range(1, num_lines + 1):
        numbers = {
            "loss": 3.0 / number,
            "cross_entropy": 2.5 / number,
            "weight_penalty": 0.5 / number,
            "learning_rate": 0.125,
            "images_per_second": 64.0,
            "input_wait_share": 0.01,
            "exchange_share": 0.25,
            "bytes_sent_per_step": 1000,
            "message_bytes_per_step": 1000,
            RANK_SPEEDS: [40.0, 32.0],
        }
        step = 10 * number
        lines.append(jsonl.make_line("train", step, config.epoch(step), numbers))
    if top1 is not None:
        numbers = {"top1": top1, "top5": 1.0, "cross_entropy": 0.5, "count": 360}
        lines.append(jsonl.make_line("eval", step, config.epoch(step), numbers))
    digests = {"state_digest": 1, "log_digest": 2, "gradient_digests": [3, 4]}
    lines.append(jsonl.make_line(jsonl.RECEIPT, step, config.epoch(step), digests))
    (path / jsonl.FILE).write_text("".join(map(jsonl.encode, lines)))


def cut_log(path: Path, num_lines: int) -> None:
    lines = (path / jsonl.FILE).read_text().splitlines(keepends=True)
    (path / jsonl.FILE).write_text("".join(lines[:num_lines]))


def append_line(path: Path, text: str) -> None:
    with (path / jsonl.FILE).open("a") as file:
        file.write(text)


def save_checkpoint(path: Path, **metadata) -> None:
    saved = step_dirs.of_step(path, 400)
    saved.mkdir(parents=True)
    integrity.write_contents(saved, metadata, {})


def text_of(*paths: Path) -> str:
    return page.html_of(folder.read_all(paths))


class Reader(html.parser.HTMLParser):
    """Checks that elements are closed; collects tags, attributes, text and charts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.charts: list[dict] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] not in ("script", "style"):
            self.text += data + " "
        elif self.tags[-1] == ("script", {"type": "application/json"}):
            self.charts.append(json.loads(data))


def words_of(*paths: Path) -> str:
    return " ".join(Reader(text_of(*paths)).text.split())


@pytest.fixture(autouse=True)
def small_library(monkeypatch) -> None:
    """Replaces the charts' library, which takes seconds to put together."""
    monkeypatch.setattr(charts, "script_text", lambda: "window.vegaEmbed = null;")
