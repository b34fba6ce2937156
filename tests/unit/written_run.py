"""The folder of a run that has trained to its end, and what its page says."""

import html.parser
from pathlib import Path

import pytest

from resnet.config.config import save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from resnet.report import folder, page
from resnet.report.charts import javascript

_VOID = {"img", "meta"}


@pytest.fixture(autouse=True)
def small_library(monkeypatch):
    """Stands in for the charts' library, which takes seconds to put together."""
    monkeypatch.setattr(javascript, "script", lambda: "window.vegaEmbed = null;")


def make_run(path: Path, class_names=("a", "b", "c"), num_lines: int = 40, **changes):
    """Writes the folder of a run that has trained to its end."""
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
            jsonl.RANK_SPEEDS: [40.0, 32.0],
        }
        step = 10 * number
        lines.append(jsonl.make_line("train", step, config.epoch(step), numbers))
    found = {"top1": 0.75, "top5": 1.0, "cross_entropy": 0.5, "loss": 1.0, "count": 360}
    lines.append(jsonl.make_line("eval", step, config.epoch(step), found))
    (path / jsonl.FILE).write_text("".join(map(jsonl.encode, lines)))
    return config


def text_of(*paths: Path) -> str:
    return page.html_of(folder.read_all(paths))


class Reader(html.parser.HTMLParser):
    """Checks that elements are closed; collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
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


def words_of(*paths: Path) -> str:
    return " ".join(Reader(text_of(*paths)).text.split())
