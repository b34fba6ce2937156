"""The script of docs/metrics.md sends a growing file once, to stubbed trackers."""

import contextlib
import json
import re
import sys
import time
import types

import pytest

from tests.sources import ROOT

SCRIPT, WANDB, MLFLOW = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/metrics.md").read_text(), re.M | re.S
)
RUN = ROOT / "docs/curves/imagenette"
LINES = (RUN / "metrics.jsonl").read_text().splitlines(keepends=True)
OF_RANKS = "rank_images_per_second"  # A list, as runs of several ranks have it.
LINES[0] = LINES[0].replace("}", f', "{OF_RANKS}": [18.5, 18.9]}}')
RECEIPT = '{"kind": "receipt", "step": 0, "epoch": 0.0, "gradient_digests": [1, 2]}\n'


def event(name: str) -> str:
    return json.dumps({"event": name, "time": 1.0}) + "\n"


def run_while_it_grows(client: str, folder, monkeypatch) -> None:
    """Runs the script beside a run that begins, is resumed, and ends."""
    metrics, history = folder / "metrics.jsonl", folder / "history.jsonl"
    half_written = [*LINES[:20], LINES[20][:30]]
    states = iter(
        (
            (half_written, event("start") + event("end") + event("start")),
            (LINES[:30], ""),
            (LINES[:25], event("failure")),  # Resumed: the last steps come again.
            (LINES[:28], event("supervisor") + event("start")),
            (LINES, event("end") + event("export")),
        )
    )

    def grow(_: float) -> None:
        lines, events = next(states)
        (folder / "config.json").write_text((RUN / "config.json").read_text())
        metrics.write_text(RECEIPT + "".join(lines))
        with history.open("a") as file:
            file.write(events)

    monkeypatch.setattr(time, "sleep", grow)
    monkeypatch.setattr(sys, "argv", ["send_metrics.py", str(folder)])
    exec(SCRIPT + client, {})
    assert next(states, None) is None


@pytest.fixture
def wanted():
    """Returns the step and the numbers of each line, with the kind in their names."""
    lines = map(json.loads, LINES)
    return [
        (
            line.pop("step"),
            {f"{line['kind']}/{name}": line[name] for name in line if name != OF_RANKS},
        )
        for line in lines
    ]


@pytest.mark.parametrize("client", [WANDB, MLFLOW], ids=["wandb", "mlflow"])
def test_each_line_is_sent_once(client, wanted, tmp_path, monkeypatch):
    sent, calls = [], []
    name = re.search(r"^import (\w+)", client, re.M)[1]

    def log(numbers, step):
        kind = next(iter(numbers)).partition("/")[0]
        sent.append((step, {**numbers, f"{kind}/kind": kind}))

    module = types.ModuleType(name)
    module.log = module.log_metrics = log
    module.init = module.finish = lambda **settings: calls.append(settings)
    module.log_dict = lambda settings, file: calls.append(settings)
    module.start_run = lambda run_name: contextlib.nullcontext(calls.append(run_name))
    monkeypatch.setitem(sys.modules, name, module)
    run_while_it_grows(client, tmp_path, monkeypatch)
    assert sorted(sent, key=str) == sorted(wanted, key=str)
    assert [step for step, _ in sent] == sorted(step for step, _ in sent)
    assert len(calls) == 2
