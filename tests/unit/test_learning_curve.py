import pathlib
import subprocess
import sys

import pytest
from PIL import Image

from eval import learning_curve
from resnet import config as configs
from resnet import metrics_file, recipes

PROGRAM = pathlib.Path(learning_curve.__file__)
TRAIN = [
    metrics_file.make_line(
        "train",
        step,
        step / 10,
        {"loss": 2.0 / step, "learning_rate": 0.1, "images_per_second": 5.0},
    )
    for step in (10, 20, 30)
]
EVAL = [
    metrics_file.make_line(
        "eval", 30, 3.0, {"top1": 0.5, "top5": 0.75, "loss": 1.5, "count": 1234}
    )
]


@pytest.fixture
def config(tmp_path) -> configs.Config:
    """Settings that are saved in a folder of their own."""
    config = configs.resolve(
        recipes.DIGITS,
        {
            "precision": "float32",
            "seed": 0,
            "data_dir": "records",
            "model_dir": str(tmp_path / "model"),
            "mode": "train",
            "eval_batch_size": 8,
            "log_step_count_steps": 10,
            "checkpoint_every": "1 epoch",
            "keep_checkpoints": 5,
            "num_parallel_calls": 0,
        },
        num_train_examples=1437,
        class_names=("a", "b"),
    )
    configs.save(config)
    return config


def write_metrics(config: configs.Config, lines) -> None:
    path = pathlib.Path(config.model_dir, metrics_file.FILE)
    path.write_text("".join(map(metrics_file.encode, lines)))


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *flags],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("lines", [TRAIN, TRAIN + EVAL, TRAIN[:1]])
def test_a_png_is_drawn_with_and_without_evaluations(config, tmp_path, lines):
    picture = tmp_path / "new folder" / "curve.png"
    learning_curve.draw(lines, config, picture)
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.size == (1320, 396)  # 12 x 3.6 inches of 110 dots.
        assert len(image.convert("RGB").getcolors(2**20)) > 10  # Not an empty page.


def test_the_suffix_says_the_format(config, tmp_path):
    learning_curve.draw(TRAIN, config, tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_the_program_draws_into_the_runs_folder_and_says_where(config):
    write_metrics(config, TRAIN + EVAL)
    done = run(f"--model_dir={config.model_dir}")
    picture = pathlib.Path(config.model_dir, "learning_curve.png")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_without_metrics_it_says_so(config):
    done = run(f"--model_dir={config.model_dir}")
    assert_refused(done, "expected lines of training")


def test_without_a_run_it_says_so(tmp_path):
    (tmp_path / metrics_file.FILE).write_text(metrics_file.encode(TRAIN[0]))
    assert_refused(run(f"--model_dir={tmp_path}"), "config.json")
    assert_refused(run(), "--model_dir is required")


def test_a_format_that_cannot_be_drawn_is_a_users_mistake(config, tmp_path):
    write_metrics(config, TRAIN)
    done = run(f"--model_dir={config.model_dir}", f"--picture={tmp_path / 'a.xyz'}")
    assert_refused(done, "xyz")
