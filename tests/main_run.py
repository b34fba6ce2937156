"""The small run of the main program on several ranks, and what it writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import smallest

# Of the 24 images of `records`: 1.5 epochs.
FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    "--train_batch_size=6",
    "--train_steps=6",
    "--warmup_steps=2",
    "--log_step_count_steps=2",
    "--checkpoint_every=3steps",
    "--eval_every=3steps",
    "--eval_batch_size=4",
    "--use_tpu=False",
    "--kmp_blocktime=1",
    "--num_intra_threads=1",
    "--num_inter_threads=2",
)
# The same without evaluations.
TRAINING_FLAGS = (*(flag for flag in FLAGS if "eval" not in flag), "--mode=train")
# Of a loss; sums of float32 in another order.
TOLERANCE = 1e-5


def read_metrics(model_dir: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's metrics.jsonl, except the receipts."""
    text = (model_dir / "metrics.jsonl").read_text()
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["kind"] != "receipt"]


def evaluation_lines(model_dir: Path) -> list[dict[str, Any]]:
    """Returns those lines that tell what the training's own evaluations found."""
    return [line for line in read_metrics(model_dir) if line["kind"] == "eval"]


def assert_same(
    result: dict[str, Any], expected: dict[str, Any], count: int = 11
) -> None:
    """Checks that two evaluations of the same weights have found the same.

    Each is a result in the JSON file of one, or a line of the training's metrics.jsonl.
    """
    assert result["count"] == expected["count"] == count
    assert result["top1"] == pytest.approx(expected["top1"], abs=1e-6)
    assert result["top5"] == pytest.approx(expected["top5"], abs=1e-6)
    assert result["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
