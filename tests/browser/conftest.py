"""Reports of several kinds of runs, and Debian's Chromium to open them in."""

import dataclasses
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet.evaluation import prediction_file
from resnet.evaluation.prediction_file import Predictions, WrongImage
from resnet.metrics import jsonl
from resnet.report import page
from resnet.watchdog import history
from tests.unit.report_runs import append_line, cut_log, make_run, save_checkpoint

_CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# What a page must not run, break apart or show in the wrong order.
NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "😀👩‍🔬🏳️‍🌈",
    "قطة صغيرة",
    "חתול (2)",
    "a-very-long-name-without-a-place-to-break-" + 4 * "0123456789",
    "ordinary",
)
DIGITS = tuple("0123456789")
RUNS = ("imagenette 1", "imagenette 2", "imagenette 3")


def wrong_predictions(
    names: tuple[str, ...], num_images: int, num_shown: int, accuracy: float = 0.9
) -> Predictions:
    """Returns predictions of images whose classes take turns, with small JPEGs."""
    random = np.random.default_rng(0)
    labels = np.arange(num_images) % len(names)
    shifts = np.argsort(random.random((num_images, len(names))), axis=1)[:, :5]
    top = (labels[:, None] + shifts) % len(names)
    is_right = random.random(num_images) < accuracy
    top[is_right, 0] = labels[is_right]
    probabilities = np.sort(random.dirichlet(np.ones(6), num_images))[:, :0:-1]
    wrong = np.flatnonzero(top[:, 0] != labels)[:num_shown].tolist()
    images = [
        WrongImage(number, f"{names[labels[number]]}/{number}.jpg", _jpeg(random))
        for number in wrong
    ]
    return Predictions(
        evaluated="step 400",
        step=400,
        views="center",
        records_sha256="d" * 64,
        class_names=names,
        class_descriptions=(),
        examples=np.arange(num_images, dtype=np.int32),
        labels=labels.astype(np.int32),
        top_classes=top[:, : min(5, len(names))].astype(np.int32),
        top_probabilities=probabilities[:, : min(5, len(names))].astype(np.float32),
        wrong_images=tuple(images),
    )


def _jpeg(random: np.random.Generator) -> bytes:
    file = io.BytesIO()
    blocks = random.integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(blocks).resize((112, 112)).save(file, "JPEG", quality=85)
    return file.getvalue()


def demo(folder: Path) -> list[Path]:
    make_run(folder, DIGITS, data_dir="demo-run/records")
    hosts = {"node-1": 1, "node-2": 1}
    history.append(folder, "start", step=0, num_ranks=2, hosts=hosts, cpu="AMD EPYC")
    history.append(folder, "end", step=400, reason="the training is done")
    save_checkpoint(folder, installation={"version of numpy": "2.0"}, num_ranks=2)
    stored = wrong_predictions(DIGITS, 360, 24)
    prediction_file.write(folder, "step-00000400", stored)
    return [folder]


def several(folder: Path) -> list[Path]:
    for name, rate in zip(RUNS, (0.25, 0.5, 1.0), strict=True):
        make_run(folder / name, DIGITS, peak_learning_rate=rate)
        save_checkpoint(folder / name)
        stored = wrong_predictions(DIGITS, 360, 3, accuracy=1 - rate / 4)
        prediction_file.write(folder / name, "step-00000400", stored)
    return [folder / name for name in RUNS]


def broken(folder: Path) -> list[Path]:
    """A run without settings, with half a log, NaN and damaged files."""
    make_run(folder, num_lines=60)
    cut_log(folder, 20)
    numbers = {"loss": float("nan"), "cross_entropy": float("nan")}
    for step in (210, 220):
        append_line(folder, jsonl.encode(jsonl.make_line("train", step, 9.0, numbers)))
    append_line(folder, 'no json\n{"kind": "train", "st')
    history.append(folder, "start", step=0, num_ranks=2, hosts={"h": 2})
    history.write_failure(folder, "the loss of step 220 is not finite on rank 1")
    history.append(folder, "supervisor", reason="restart 1 of 3")
    (folder / "diverged-step-00000220.json").write_text('{"step": 220, "ranks": [1]}')
    (folder / "predictions").mkdir()
    (folder / "predictions" / "step-00000010.npz").write_bytes(b"PK\3\4")
    save_checkpoint(folder)
    shutil.rmtree(next((folder / "checkpoints").iterdir()))
    (folder / "config.json").unlink()
    return [folder]


def empty(folder: Path) -> list[Path]:
    folder.mkdir()
    return [folder]


def many_classes(folder: Path) -> list[Path]:
    names = tuple(f"n{number:08d}" for number in range(1000))
    make_run(folder, names, num_lines=2_000, data_dir="/data/imagenet/tfrecords")
    save_checkpoint(folder)
    stored = wrong_predictions(names, 50_000, 48, accuracy=0.76)
    words = tuple(f"kind {number} of animal, Genus species" for number in range(1000))
    stored = dataclasses.replace(stored, class_descriptions=words)
    prediction_file.write(folder, "step-00020000", stored)
    return [folder]


def hostile_names(folder: Path) -> list[Path]:
    # A file can't have a slash in its name.
    paths = [folder / name.replace("/", "∕") for name in NAMES[:4]]  # noqa: RUF001
    for path in paths:
        make_run(path, NAMES, data_dir=f"/data/{NAMES[3]}/records")
        stored = wrong_predictions(NAMES, 70, 6, accuracy=0.5)
        prediction_file.write(path, "step-00000400", stored)
        facts = {"hosts": {NAMES[0]: 1, NAMES[3]: 1}, "cpu": NAMES[1], "num_ranks": 2}
        history.append(path, "start", step=0, **facts)
        history.append(path, "supervisor", reason=" ".join(NAMES))
        history.append(path, NAMES[2], what=NAMES[1])
        history.write_failure(path, " ".join(NAMES))
        line = {"kind": "train", "step": 401, "epoch": 17.9, NAMES[0]: 1, NAMES[3]: 2}
        append_line(path, f"{json.dumps(line)}\n")
    settings = json.loads((paths[0] / "config.json").read_text())
    settings["phases"][0]["name"] = NAMES[0]
    (paths[0] / "config.json").write_text(json.dumps({**settings, "model": NAMES[1]}))
    return paths


def study(folder: Path) -> list[Path]:
    folder.mkdir()
    rows = ({}, 0.92, 4e6), ({"method": "topk", "ratio": 0.01}, 0.91, 4e4)
    runs = [
        {"row": row, "seed": seed, "result": {"top1": top1, "message_bytes": size}}
        for row, top1, size in rows
        for seed in range(2)
    ]
    (folder / "study.json").write_text(json.dumps({"shared": {}, "runs": runs}))
    return [folder]


MAKERS: dict[str, Callable[[Path], list[Path]]] = {
    make.__name__: make
    for make in (demo, several, broken, empty, many_classes, hostile_names, study)
}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each kind of run, by the name of the function that makes the run."""
    folder = tmp_path_factory.mktemp("reports")
    for name, make in MAKERS.items():
        page.write(make(folder / name), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in MAKERS}


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    from playwright.sync_api import sync_playwright  # Only `make browser` installs it.

    # Chromium has no sandbox for root.
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=options)
        yield browser
        browser.close()
