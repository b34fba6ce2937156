import dataclasses
import pathlib

import pytest

from eval.lab import dawnbench_log
from resnet.config.config import Config, save_config
from resnet.config.recipes import cifar10
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from tests.in_process import assert_refused, run


@pytest.fixture
def config(tmp_path) -> Config:
    """Settings, saved in a folder of their own, of a run with 10 steps per epoch."""
    config = resolve(
        cifar10.RESNET9,
        {"model_dir": str(tmp_path / "model"), "global_batch_size": 36},
        num_train_examples=360,
        class_names=("a", "b"),
    )
    save_config(config)
    return config


def train(step: int, images_per_second: float) -> jsonl.Line:
    return jsonl.make_line(
        "train", step, step / 10, {"images_per_second": images_per_second}
    )


def evaluation(step: int, top1: float, kind: str = "eval") -> jsonl.Line:
    return jsonl.make_line(kind, step, step / 10, {"top1": top1})


def write_metrics(config: Config, *lines: jsonl.Line) -> None:
    path = pathlib.Path(config.model_dir, jsonl.FILE)
    path.write_text("".join(map(jsonl.encode, lines)))


def test_each_evaluation_has_its_epoch_hours_and_accuracy(config):
    # 36 images in a step: at 0.1 images per second 0.1 hours, at 0.2 half of it.
    write_metrics(
        config,
        train(4, 0.1),
        train(8, 0.2),
        evaluation(10, 0.34689),
        evaluation(10, 0.9, "eval_ema"),
        train(12, 0.1),
        train(20, 0.2),
        evaluation(20, 1.0),
    )
    done = run(dawnbench_log, f"--model_dir={config.model_dir}")
    path = pathlib.Path(config.model_dir, "logs.tsv")
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    # 0.4 + 0.2 + half of 0.4; then the other half and 0.4.
    text = path.read_text()
    assert text == (
        "epoch\thours\ttop1Accuracy\n1\t0.80000000\t34.69\n2\t1.40000000\t100.00\n"
    )
    named = pathlib.Path(config.model_dir, "named.tsv")
    flags = f"--model_dir={config.model_dir}", f"--tsv_file={named}"
    assert run(dawnbench_log, *flags).returncode == 0
    assert named.read_text() == text


def test_a_line_without_a_rate_has_that_of_the_next(config):
    lines = [train(1, 0.0), train(5, 0.1), train(6, 0.0)]
    steps, hours = dawnbench_log.hours_of_steps(config, lines, "the file")
    assert steps == [0, 1, 5, 6]
    assert hours == pytest.approx([0, 0.1, 0.5, 0.6])


def test_an_epoch_may_end_within_a_step(config):
    config = dataclasses.replace(config, num_train_examples=350)  # 9.72 steps.
    write_metrics(config, train(20, 0.1), evaluation(10, 0.5), evaluation(20, 0.5))
    save_config(config)
    assert run(dawnbench_log, f"--model_dir={config.model_dir}").returncode == 0
    rows = pathlib.Path(config.model_dir, "logs.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows] == ["epoch", "1", "2"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "there are 0 and 0. Train with --eval_every=1epoch"),
        ((train(10, 0.1),), "there are 1 and 0"),
        ((train(10, 0.1), evaluation(14, 0.5)), "that of step 14 is at epoch 1.40"),
        ((train(10, 0.0), evaluation(10, 0.5)), "it has none above 0"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused(config, lines, message):
    write_metrics(config, *lines)
    assert_refused(run(dawnbench_log, f"--model_dir={config.model_dir}"), message)
    assert not pathlib.Path(config.model_dir, "logs.tsv").exists()
    assert_refused(run(dawnbench_log), "--model_dir is required")
