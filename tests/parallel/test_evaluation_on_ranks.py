"""Evaluating a run of two phases with moving averages and recalibrated statistics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.records import manifest
from eval import resnet_eval
from resnet import resnet_main
from resnet.checkpoint import tensors
from resnet.evaluation import prediction_file
from tests import smallest
from tests.main_run import TOLERANCE, assert_same, read_metrics

# One epoch of the 24 images each: 4 steps.
RECIPE = {
    "based_on": "digits",
    "name": "two_phases",
    "model": smallest.NETWORK,
    "image_size": 32,
    "global_batch_size": 6,
    "num_train_examples": 24,
    "phases": [
        {"name": "one", "epochs": 1, "schedule": {"peak_value": 0.05}},
        {"name": "two", "epochs": 1, "schedule": {"peak_value": 0.02}},
    ],
}


@pytest.fixture(scope="module")
def train(run, lockstep, records, new_folder):
    """Returns a function that trains on the ranks and returns the folder of the run."""

    def train(*flags: str) -> Path:
        folder = new_folder("run")
        recipe = folder / "recipe.json"
        lockstep.from_rank_0(lambda: recipe.write_text(json.dumps(RECIPE)))
        run(
            resnet_main,
            f"--recipe={recipe}",
            "--ema_decay=0.9",
            "--eval_every=4steps",
            "--checkpoint_every=4steps",
            "--num_intra_threads=1",
            f"--data_dir={records}",
            f"--model_dir={folder / 'model'}",
            *flags,
        )
        return folder / "model"

    return train


@pytest.fixture(scope="module")
def model_dir(train) -> Path:
    return train("--recalibration_batches=5")


@pytest.fixture
def evaluate(run, records, tmp_path, model_dir):
    """Returns a function that evaluates and returns the JSON of what was found."""

    def evaluate(*flags: str, is_alone: bool = False) -> dict[str, Any]:
        json_file = tmp_path / f"{'alone' if is_alone else 'together'}.json"
        job = run(
            resnet_eval,
            f"--data_dir={records}",
            f"--model_dir={model_dir}",
            f"--json_file={json_file}",
            "--num_intra_threads=1",
            *flags,
            is_alone=is_alone,
        )
        found = json.loads(json_file.read_text())
        assert job.stdout.count("\n") == len(found["results"])
        return found

    return evaluate


def evaluations(model_dir: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """What the training itself found, by step and weights."""
    names = {"eval": "raw", "eval_ema": "ema"}
    return {
        (line["step"], names[line["kind"]]): line
        for line in read_metrics(model_dir)
        if line["kind"] in names
    }


@pytest.mark.parametrize(
    ("is_alone", "batch_size"),
    [(True, 200), pytest.param(False, 4, marks=pytest.mark.ranks(3))],
)
def test_evaluation_finds_what_the_recalibrated_training_found(
    evaluate, model_dir, is_alone, batch_size
):
    found = evaluate(
        "--checkpoints=phases", f"--eval_batch_size={batch_size}", is_alone=is_alone
    )
    assert found["recalibration_batches"] == 5
    expected = evaluations(model_dir)
    keys = [(result["global_step"], result["weights"]) for result in found["results"]]
    assert keys == [(4, "raw"), (4, "ema"), (8, "raw"), (8, "ema")]
    for result, key in zip(found["results"], keys, strict=True):
        assert_same(result, expected[key])


def test_recalibration_changes_what_is_found_but_not_the_training(train, model_dir):
    plain = train()
    found, recalibrated = evaluations(plain), evaluations(model_dir)
    assert list(found) == list(recalibrated)
    assert all(found[key]["loss"] != recalibrated[key]["loss"] for key in found)
    for step in (4, 8):
        ours = tensors.load(model_dir, step).tensors
        expected = tensors.load(plain, step).tensors
        assert ours.keys() == expected.keys()
        for name, value in ours.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert losses(plain) == losses(model_dir)


def losses(model_dir: Path) -> list[float]:
    """Returns the losses of the training's steps."""
    lines = read_metrics(model_dir)
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_the_training_images_are_evaluated_too(evaluate):
    flags = ("--recalibration_batches=0", "--weights=raw")
    alone = evaluate("--split=train", *flags, is_alone=True)
    together = evaluate("--split=train", "--eval_batch_size=7", *flags)
    assert [found["split"] for found in (alone, together)] == ["train"] * 2
    assert_same(together, alone, count=24)


@pytest.mark.parametrize(
    ("combine", "weights"), [("weights", "ema"), ("predictions", "raw")]
)
def test_checkpoints_are_averaged_as_on_one_rank(evaluate, model_dir, combine, weights):
    flags = (f"--combine={combine}", "--checkpoints=4,8", f"--weights={weights}")
    alone = evaluate(*flags, is_alone=True)
    together = evaluate(*flags, "--eval_batch_size=7")
    of_each = evaluations(model_dir)
    assert alone["combine"] == combine
    ((result,), (other,)) = alone["results"], together["results"]
    assert (result["weights"], result["steps"]) == (weights, [4, 8])
    assert_same(other, result)
    losses = [of_each[step, weights]["loss"] for step in (4, 8)]
    if combine == "predictions":
        # The logarithm is concave: the cross-entropy of the mean probabilities is at
        # most the mean of the networks'.
        assert result["loss"] < np.mean(losses)
    else:
        assert min(abs(result["loss"] - loss) for loss in losses) > 100 * TOLERANCE


@pytest.mark.parametrize("combine", ["none", "predictions"])
def test_the_stored_predictions_of_ranks_are_those_of_one(evaluate, model_dir, combine):
    flags = ("--store_predictions", f"--combine={combine}", "--weights=raw")
    flags += ("--checkpoints=phases", "--recalibration_batches=0")
    name = "step" if combine == "none" else "mean-predictions"
    pattern = f"{name}-00000008*.npz"
    evaluate(*flags, is_alone=True)
    (path,) = (model_dir / "predictions").glob(pattern)
    alone = prediction_file.read(path)
    found = evaluate(*flags, "--eval_batch_size=7")
    together = prediction_file.read(path)
    assert together.examples.tolist() == alone.examples.tolist() == list(range(11))
    assert together.labels.tolist() == alone.labels.tolist()
    assert together.top_classes.tolist() == alone.top_classes.tolist()
    np.testing.assert_allclose(
        together.top_probabilities, alone.top_probabilities, rtol=1e-3
    )
    assert together.is_right.mean() == pytest.approx(found["top1"], abs=1e-6)
    assert len(together.wrong_images) == 11 - together.is_right.sum()
    assert set(together.wrong_images) == set(alone.wrong_images)
    assert together.views == "center"


def test_predictions_of_other_statistics_and_views_have_files_of_their_own(
    evaluate, model_dir, records
):
    evaluate("--store_predictions", "--weights=raw", "--views=flip", is_alone=True)
    path = model_dir / "predictions" / "step-00000008-flip-precise-bn-5.npz"
    stored = prediction_file.read(path)
    assert stored.views == "flip"
    assert stored.evaluated == "step 8, PreciseBN of 5 batches"
    split = manifest.load(str(records), "validation").manifest.splits["validation"]
    assert stored.records_sha256 == split.records_sha256
