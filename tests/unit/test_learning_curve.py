"""The program that draws learning curves; tests/unit/test_figure.py has the figure."""

import dataclasses
import pathlib

import pytest

from eval import learning_curve
from resnet.config.config import Config, save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from tests.in_process import assert_refused, run

TRAIN = [
    jsonl.make_line("train", step, step / 10, {"cross_entropy": 2.0 / step})
    for step in (10, 20, 30)
]
_EVALUATION = {"top1": 0.5, "top5": 0.75, "cross_entropy": 1.5, "count": 1234}
EVAL = [jsonl.make_line("eval", 30, 3.0, _EVALUATION)]


@pytest.fixture
def config(tmp_path) -> Config:
    """Settings that are saved in a folder of their own."""
    overrides = {"data_dir": "records", "model_dir": str(tmp_path / "model")}
    config = resolve(digits.DIGITS, overrides, 1437, ("a", "b"))
    save_config(config)
    return config


def write_metrics(config: Config, lines) -> None:
    path = pathlib.Path(config.model_dir, jsonl.FILE)
    path.write_text("".join(map(jsonl.encode, lines)))


def test_runs_are_called_by_their_recipes_or_by_their_folders(config, tmp_path):
    configs = [config]
    for recipe, name in (("mine", "model"), ("digits", "seed-1")):
        folder = tmp_path / recipe / name
        other = dataclasses.replace(config, recipe=recipe, model_dir=str(folder))
        save_config(other)
        configs.append(other)
    for of_run in configs:
        write_metrics(of_run, TRAIN + EVAL)
    first, second, third = (pathlib.Path(of_run.model_dir) for of_run in configs)

    def names(*folders: pathlib.Path) -> list[str]:
        return [run.name for run in learning_curve.load(folders)]

    assert names(first, second) == ["digits", "mine"]
    assert names(first, third) == ["model", "seed-1"]
    assert names(first, second, third)[1] == "mine/model"


def test_the_program_draws_several_runs(config, tmp_path):
    write_metrics(config, TRAIN + EVAL)
    picture = tmp_path / "both.png"
    both = f"--model_dir={config.model_dir},{config.model_dir}"
    done = run(learning_curve, both, f"--picture={picture}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_what_cannot_be_drawn_is_one_sentence(config, tmp_path):
    model_dir = f"--model_dir={config.model_dir}"
    assert_refused(run(learning_curve), "--model_dir is required")
    assert_refused(run(learning_curve, model_dir), "expected training metrics")
    write_metrics(config, TRAIN)
    picture = f"--picture={tmp_path / 'a.xyz'}"
    done = run(learning_curve, model_dir, picture)
    assert_refused(done, "--picture must end in .png, .svg or .pdf; got ")
    metrics = pathlib.Path(config.model_dir, jsonl.FILE)
    metrics.unlink()
    metrics.mkdir()
    assert_refused(run(learning_curve, model_dir), "reading ")
    (tmp_path / jsonl.FILE).write_text(jsonl.encode(TRAIN[0]))
    assert_refused(run(learning_curve, f"--model_dir={tmp_path}"), "config.json")
