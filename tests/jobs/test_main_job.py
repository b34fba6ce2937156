"""The main job as a user runs it: train on ranks, go on, evaluate on ranks."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

FLAGS = (
    "--recipe=digits",
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


def test_the_same_command_again_has_nothing_left_to_do(run_ranks, records, model_dir):
    before = read_metrics(model_dir)
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *FLAGS,
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
    )
    assert job.returncode == 0, job.stderr
    assert "Current step 6." in job.stderr
    assert read_metrics(model_dir) == before


def test_auto_keeps_the_precision_of_the_run(run_ranks, records, model_dir):
    job = run_ranks(
        1,
        "resnet/resnet_main.py",
        *FLAGS,
        "--precision=auto",
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
    )
    assert job.returncode == 0, job.stderr
    config = json.loads((model_dir / "config.json").read_text())
    assert config["precision"] == "float32"


def test_other_settings_in_the_same_model_dir_are_refused(
    run_ranks, records, model_dir
):
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *FLAGS,
        "--weight_decay=1e-3",
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
    )
    assert job.returncode == 2
    assert job.stderr.count("error:") == 1
    assert "weight_decay=5e-05, now 0.001" in job.stderr


@pytest.mark.parametrize(("num_ranks", "batch_size"), [(1, 4), (2, 3), (3, 200)])
def test_evaluation_counts_every_image_once_on_any_ranks(
    run_ranks, records, model_dir, tmp_path, num_ranks, batch_size
):
    job = run_ranks(
        num_ranks,
        "eval/resnet_eval.py",
        f"--eval_batch_size={batch_size}",
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


def test_all_checkpoints_can_be_evaluated(run_ranks, records, model_dir, tmp_path):
    job = run_ranks(
        1,
        "eval/resnet_eval.py",
        "--checkpoints=all",
        f"--data_dir={records / 'validation'}",
        f"--model_dir={model_dir}",
        f"--json_file={tmp_path / 'eval.json'}",
    )
    assert job.returncode == 0, job.stderr
    results = json.loads((tmp_path / "eval.json").read_text())["results"]
    evals = [line for line in read_metrics(model_dir) if line["kind"] == "eval"]
    assert [one["global_step"] for one in results] == [3, 6]
    for one, line in zip(results, evals, strict=True):
        assert one["loss"] == pytest.approx(line["loss"], rel=1e-5)


def test_bf16_trains_and_says_if_float32_is_faster(run_ranks, records, tmp_path):
    job = run_ranks(
        1,
        "resnet/resnet_main.py",
        *FLAGS,
        "--precision=bf16",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 0, job.stderr
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["precision"] == "bf16"
    assert len(read_metrics(tmp_path / "model")) == 5
