"""Runs of the main program and evaluations of them, on ranks and alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from eval import resnet_eval
from resnet import resnet_main
from resnet.checkpoint import step_dirs
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.hardware import cpu_features
from resnet.runtime import host_warnings
from tests.main_run import (
    FLAGS,
    TRAINING_FLAGS,
    assert_same,
    evaluation_lines,
    read_metrics,
)


@pytest.fixture
def train(run, records):
    """Returns `train(model_dir, *flags, is_alone=False, code=0)`."""

    def train(model_dir: Path, *flags: str, **kind: Any):
        folders = (f"--data_dir={records}", f"--model_dir={model_dir}")
        return run(resnet_main, *FLAGS, *folders, *flags, **kind)

    return train


@pytest.fixture(scope="module")
def model_dir(run, records, new_folder) -> Path:
    """Returns a run of 6 steps."""
    folder = new_folder("main") / "model"
    run(resnet_main, *FLAGS, f"--data_dir={records}", f"--model_dir={folder}")
    return folder


def test_only_rank_0_writes_and_metrics_hold_every_number_once(model_dir):
    assert len(list((model_dir / "tensorboard" / "train").iterdir())) == 1
    assert saved_steps(model_dir) == [3, 6]
    names = "checkpoints config.json history.jsonl metrics.jsonl tensorboard"
    assert sorted(entry.name for entry in model_dir.iterdir()) == names.split()
    lines = read_metrics(model_dir)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 2),
        ("eval", 3),
        ("train", 4),
        ("train", 6),
        ("eval", 6),
    ]
    train, evaluation = lines[0], lines[1]
    assert train["epoch"] == pytest.approx(2 * 6 / 24)
    assert train["bytes_sent_per_step"] == train["message_bytes_per_step"]  # 2 ranks.
    assert 0 < train["exchange_share"] < 1
    both = train["cross_entropy"] + train["weight_penalty"]
    assert train["loss"] == pytest.approx(both, rel=1e-6)
    assert 0 < evaluation["cross_entropy"] < evaluation["loss"]
    assert train["learning_rate"] > 0
    assert evaluation["count"] == 11
    assert evaluation["seconds"] > 0
    assert 0 <= evaluation["top1"] <= evaluation["top5"] == 1  # Of three classes.


def test_the_same_command_has_nothing_left_to_do_and_another_is_refused(
    train, model_dir
):
    before = read_metrics(model_dir)
    job = train(model_dir, "--precision=auto")
    assert job.stderr.count("is complete: it has trained 6 steps") == 1
    assert job.stderr.count("Predict:  ") == 1
    assert read_metrics(model_dir) == before
    config = json.loads((model_dir / "config.json").read_text())
    assert config["precision"] == "float32"
    job = train(model_dir, "--weight_decay=1e-3", code=2)
    assert job.stderr.count("error:") == 1
    assert "weight_decay=5e-05, now 0.001" in job.stderr


def test_compressed_gradients_train_and_resume_on_other_ranks(train, tmp_path):
    flags = ("--compress=layerwise", "--method=topk", "--ratio=0.1", "--error_feedback")
    job = train(tmp_path, *flags, "--stop_after_steps=3")
    assert "compress = layerwise as given instead of none" in job.stderr
    names = {path.name.partition(".")[0] for path in of_step(tmp_path, 3).iterdir()}
    assert {"rank-00000-of-00002", "rank-00001-of-00002"} <= names
    train(tmp_path, *flags, is_alone=True)
    losses = [line["cross_entropy"] for line in evaluation_lines(tmp_path)]
    assert len(losses) == 2
    assert all(0 < loss < 5 for loss in losses)
    other = train(tmp_path, "--compress=layerwise", is_alone=True, code=2)
    assert "method" not in other.stderr  # It is topk by default too.
    assert "ratio=0.1, now 0.5" in other.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--method=powersgd", "--powersgd_rank=2", "--error_feedback"),
        (
            *("--method=dgc", "--ratio=0.1", "--exchange=sliced"),
            *("--dgc_warmup_epochs=1", "--dense_below=100"),
        ),
        pytest.param(
            ("--method=qsgd", "--qstates=7", "--qsgd_norm=max", "--error_feedback"),
            marks=pytest.mark.ranks(3),  # The exchange is chosen by a measurement.
        ),
    ],
    ids=lambda one: one[0],
)
def test_a_stopped_run_of_compressed_gradients_resumes_bit_for_bit(
    run, records, tmp_path, communicator, flags
):
    flags = (*TRAINING_FLAGS, f"--data_dir={records}", "--compress=layerwise", *flags)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for more in (("--stop_after_steps=3",), ()):
        run(resnet_main, *flags, f"--model_dir={stopped}", *more)
    if not any(flag.startswith("--exchange=") for flag in flags):
        # Another run would measure the network anew, and might choose otherwise.
        chosen = json.loads((stopped / "config.json").read_text())["exchange"]
        flags += (f"--exchange={chosen}",)
    run(resnet_main, *flags, f"--model_dir={whole}")
    rank = step_dirs.rank_prefix(communicator.rank, communicator.num_ranks)
    for name in ("state", rank):
        found, expected = (
            tf.train.load_checkpoint(str(of_step(folder, 6) / name))
            for folder in (stopped, whole)
        )
        names = expected.get_variable_to_shape_map()
        assert names == found.get_variable_to_shape_map()
        for one in names:
            expected_bits = expected.get_tensor(one).tobytes()
            assert found.get_tensor(one).tobytes() == expected_bits


@pytest.mark.parametrize(
    "batch_size", [3, pytest.param(200, marks=pytest.mark.ranks(3))]
)
def test_evaluation_counts_every_image_once_on_any_ranks(
    run, records, model_dir, tmp_path, batch_size
):
    job = run(
        resnet_eval,
        f"--eval_batch_size={batch_size}",
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
        f"--json_file={tmp_path / 'eval.json'}",
        "--use_tpu=False",
        "--kmp_blocktime=1",
    )
    assert re.search(r"^Evaluation \[\d+/\d+\]$", job.stderr, re.M)
    assert "Saving dict for global step 6: Top-1 accuracy = " in job.stderr
    assert "on 11 images" in job.stdout
    result = json.loads((tmp_path / "eval.json").read_text())
    assert result["global_step"] == 6
    assert_same(result, read_metrics(model_dir)[-1])


def test_the_first_steps_of_a_run_and_the_host_of_a_warning(
    train, communicator, monkeypatch, tmp_path
):
    rank = communicator.rank
    monkeypatch.setattr(host_warnings.socket, "gethostname", lambda: f"node{rank}")
    monkeypatch.setattr(cpu_features, "model_name", lambda: f"CPU {rank}")
    model_dir = tmp_path / "model"
    job = train(model_dir, "--stop_after_steps=1")
    assert [line["step"] for line in read_metrics(model_dir)] == [1]
    assert saved_steps(model_dir) == [1]
    warning = "all wait for the slowest: CPU 0 on node0; CPU 1 on node1"
    assert job.stderr.count(warning) == 1
    assert "The training stops after --stop_after_steps=1;" in job.stderr
