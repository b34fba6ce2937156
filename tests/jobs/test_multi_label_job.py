"""Images with several labels, from a table to predictions: digits side by side."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn import datasets, metrics

from resnet.evaluation import prediction_file
from tests.in_process import succeeded

pytestmark = pytest.mark.multiprocess

NUM_IMAGES = 600


@pytest.fixture(scope="module")
def records(tmp_path_factory, run_ranks) -> Path:
    """Records of images that show none, one or two digits, which are their labels."""
    folder, digits = tmp_path_factory.mktemp("pairs"), datasets.load_digits()
    generator, rows = np.random.default_rng(0), ["path,label"]
    for number in range(NUM_IMAGES):
        shown = generator.integers(0, len(digits.images), 2)[generator.random(2) < 0.7]
        pixels = np.zeros((16, 16))
        for place, index in enumerate(shown):
            pixels[4:12, 8 * place : 8 * place + 8] = digits.images[index] * 15
        large = np.kron(pixels, np.ones((2, 2))).astype(np.uint8)
        Image.fromarray(large).save(folder / f"{number}.png")
        names = sorted({str(digits.target[index]) for index in shown})
        rows.append(f"{number}.png,{'|'.join(names)}")
    (folder / "labels.csv").write_text("\n".join(rows))
    flags = f"--labels={folder}/labels.csv", "--multi_label", "--validation_fraction=.2"
    target = f"--local_scratch_dir={folder}/records"
    done = succeeded(run_ranks(1, "data_prep/imagenet_to_tfrecords.py", *flags, target))
    assert "several labels an image: 10 (0, 1, 2" in done.stdout
    return folder / "records"


def scores_of(done) -> list[dict[str, float]]:
    lines = (json.loads(line)["predictions"] for line in done.stdout.splitlines())
    return [{p["class"]: p["probability"] for p in line} for line in lines]


def test_labels_are_learned_evaluated_and_predicted(run_ranks, records, tmp_path):
    folders = f"--data_dir={records}", f"--model_dir={tmp_path}/model"
    recipe = "--recipe=digits_mlp", "--train_epochs=80", "--eval_every=40epochs"
    export = f"--export_dir={tmp_path}/exports"
    done = run_ranks(
        *(2, "resnet/resnet_main.py", *folders, *recipe, export),
        *("--mixup=0.1", "--label_smoothing=0.05", "--stop_at=0.99"),
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "model/metrics.jsonl").read_text().splitlines()
    results = [line for line in map(json.loads, lines) if line["kind"] == "eval"]
    assert len(results) == 2
    # Chance is the share of images with a label, about 13 %.
    assert results[-1]["mean_average_precision"] > 0.6
    assert not {"top1", "top5"} & set(results[-1])

    evaluated = []
    for num_ranks in (1, 2):
        file = tmp_path / f"{num_ranks}.json"
        flags = *folders, f"--json_file={file}", "--store_predictions"
        done = succeeded(run_ranks(num_ranks, "eval/resnet_eval.py", *flags))
        assert "Mean average precision = 0." in done.stderr
        evaluated.append(json.loads(file.read_text()))
    for name in ("mean_average_precision", "mean_roc_auc", "classes", "count"):
        assert evaluated[0][name] == evaluated[1][name]
    (file,) = (tmp_path / "model/predictions").iterdir()
    stored = prediction_file.read(file)
    mean = metrics.average_precision_score(stored.labels, stored.scores)
    for result in (results[-1], evaluated[0]):
        assert result["mean_average_precision"] == pytest.approx(mean, abs=1e-6)

    images = [f"{records.parent}/{number}.png" for number in range(8)]
    (exported,) = (tmp_path / "exports").iterdir()
    of_run, of_export = (
        run_ranks(1, "eval/predict.py", "--json", network, *images)
        for network in (folders[1], f"--exported_model={exported}")
    )
    assert of_run.returncode == of_export.returncode == 0, of_export.stderr
    for line, other in zip(*map(scores_of, (of_run, of_export)), strict=True):
        assert line == pytest.approx(other, abs=1e-3)
        assert all(score > 0.5 for score in line.values())

    flags = *folders, "--combine=predictions", "--checkpoints=all"
    done = run_ranks(1, "eval/resnet_eval.py", *flags)
    assert done.returncode == 2
    assert "--combine=predictions averages the probabilities of one" in done.stderr
