"""The main job as a user runs it: train on ranks, evaluate on ranks."""

import json
import re
from pathlib import Path

import pytest

from tests import smallest

pytestmark = pytest.mark.multiprocess

FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    "--train_batch_size=6",
    "--train_steps=6",
    "--warmup_steps=2",
    "--log_step_count_steps=2",
    "--checkpoint_every=3",
    "--eval_every=3",
    "--eval_batch_size=4",
    "--use_tpu=False",
    "--kmp_blocktime=1",
    "--num_intra_threads=1",
    "--num_inter_threads=2",
)


@pytest.fixture(scope="module")
def model_dir(run_ranks, records, tmp_path_factory) -> Path:
    """Returns a run of 6 steps on 2 ranks, started in another folder."""
    folder = tmp_path_factory.mktemp("main")
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *FLAGS,
        f"--data_dir={records}",
        f"--model_dir={folder / 'model'}",
        cwd=folder,
    )
    assert job.returncode == 0, job.stderr
    assert "2 rank(s), 2 on this node" in job.stderr
    assert job.stderr.count("have no effect in this TensorFlow") == 1
    assert job.stderr.count("Training for 6 steps (1.50 epochs in total)") == 1
    lines = re.findall(
        r"^step \d+/6 .* loss .* lr .* images/s .* left$", job.stderr, re.M
    )
    assert len(lines) == 3
    assert [entry.name for entry in folder.iterdir()] == ["model"]
    return folder / "model"


def read_metrics(model_dir: Path) -> list[dict]:
    text = (model_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_only_rank_0_writes(model_dir):
    events = list((model_dir / "tensorboard" / "train").iterdir())
    assert len(events) == 1
    saved = sorted(folder.name for folder in (model_dir / "checkpoints").iterdir())
    assert saved == ["step-00000003", "step-00000006"]
    assert {entry.name for entry in model_dir.iterdir()} == {
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "tensorboard",
    }


def test_metrics_hold_every_number_once(model_dir):
    lines = read_metrics(model_dir)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 2),
        ("eval", 3),
        ("train", 4),
        ("train", 6),
        ("eval", 6),
    ]
    train, evaluation = lines[0], lines[1]
    assert set(train) == {
        "kind",
        "step",
        "epoch",
        "loss",
        "cross_entropy",
        "weight_penalty",
        "learning_rate",
        "images_per_second",
        "input_wait_share",
    }
    assert train["epoch"] == pytest.approx(2 * 6 / 24)
    both = train["cross_entropy"] + train["weight_penalty"]
    assert train["loss"] == pytest.approx(both, rel=1e-6)
    assert 0 < evaluation["cross_entropy"] < evaluation["loss"]
    assert train["learning_rate"] > 0
    assert evaluation["count"] == 11
    assert 0 <= evaluation["top1"] <= evaluation["top5"] == 1  # Of three classes.


def test_ranks_evaluate_a_run_in_another_folder(
    run_ranks, records, model_dir, tmp_path
):
    job = run_ranks(
        2,
        "eval/resnet_eval.py",
        "--eval_batch_size=3",
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
        f"--json_file={tmp_path / 'eval.json'}",
        "--use_tpu=False",
        "--kmp_blocktime=1",
        cwd=tmp_path,
    )
    assert job.returncode == 0, job.stderr
    assert re.search(r"\] Evaluation \[\d+/\d+\]", job.stderr)
    assert "Finished evaluation at 20" in job.stderr
    assert "Saving dict for global step 6: Top-1 accuracy = " in job.stderr
    assert job.stderr.count("Eval results: {'Top-1 accuracy': ") == 1
    assert "on 11 images" in job.stdout
    result = json.loads((tmp_path / "eval.json").read_text())
    last = read_metrics(model_dir)[-1]
    assert result["global_step"] == 6
    assert result["count"] == 11
    assert result["top1"] == pytest.approx(last["top1"], abs=1e-6)
    assert result["top5"] == last["top5"]
    assert result["loss"] == pytest.approx(last["loss"], rel=1e-5)
