import dataclasses
import pathlib

import pytest
from matplotlib.axes import Axes
from PIL import Image

from eval import learning_curve
from eval.learning_curve import Run
from resnet.config.config import Config, save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.metrics import figure_file, jsonl
from tests.in_process import assert_refused, run

TRAIN = [
    jsonl.make_line(
        "train",
        step,
        step / 10,
        {"loss": 2.0 / step, "learning_rate": 0.1, "images_per_second": 5.0},
    )
    for step in (10, 20, 30)
]
EVAL = [
    jsonl.make_line(
        "eval", 30, 3.0, {"top1": 0.5, "top5": 0.75, "loss": 1.5, "count": 1234}
    )
]


@pytest.fixture
def config(tmp_path) -> Config:
    """Settings that are saved in a folder of their own."""
    config = resolve(
        digits.DIGITS,
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
    save_config(config)
    return config


def run_in(config: Config, lines) -> Run:
    return Run(pathlib.Path(config.model_dir), config, lines)


def write_metrics(config: Config, lines) -> None:
    path = pathlib.Path(config.model_dir, jsonl.FILE)
    path.write_text("".join(map(jsonl.encode, lines)))


def drawn(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Returns the points of each line that has a label."""
    return {
        str(line.get_label()): [tuple(map(float, point)) for point in line.get_xydata()]
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


@pytest.mark.parametrize("lines", [TRAIN, TRAIN + EVAL, TRAIN[:1]])
def test_a_png_is_drawn_with_and_without_evaluations(config, tmp_path, lines):
    picture = tmp_path / "new folder" / "curve.png"
    figure_file.write(
        learning_curve.draw([run_in(config, lines)]), picture, "--picture"
    )
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.size == (1320, 396)  # 12 x 3.6 inches of 110 dots.
        assert len(image.convert("RGB").getcolors(2**20)) > 10  # Not an empty page.


def test_a_run_is_drawn_with_its_numbers(config):
    losses, accuracy, rate = learning_curve.draw([run_in(config, TRAIN + EVAL)]).axes
    assert losses.get_lines()[0].get_xdata().tolist() == [1.0, 2.0, 3.0]
    assert losses.get_lines()[0].get_ydata() == pytest.approx([0.2, 0.1, 2 / 30])
    assert losses.get_lines()[1].get_xydata().tolist() == [[3.0, 1.5]]
    assert drawn(accuracy) == {
        "top-5: 75.00 %": [(3.0, 75.0)],
        "top-1: 50.00 %": [(3.0, 50.0)],
    }
    assert accuracy.get_title(loc="left") == "Validation accuracy on 1,234 images, %"
    # Of each step, and not of the logged ones alone: the warm-up ends at its peak.
    rates = rate.get_lines()[0].get_ydata()
    assert len(rates) == 30
    assert (rates[0], max(rates)) == pytest.approx((0.01, 0.05))


def test_several_runs_are_drawn_over_one_another_by_their_recipes(config):
    other = dataclasses.replace(config, recipe="mine")
    average = [jsonl.make_line("eval_ema", 30, 3.0, {"top1": 0.625})]
    runs = [run_in(config, TRAIN + EVAL), run_in(other, TRAIN + EVAL + average)]
    _, accuracy, rate = learning_curve.draw(runs).axes
    assert drawn(accuracy) == {
        "digits: 50.00 %": [(3.0, 50.0)],
        "mine: 50.00 %": [(3.0, 50.0)],
        "mine, EMA weights: 62.50 %": [(3.0, 62.5)],
    }
    colors = [line.get_color() for line in accuracy.get_lines()]
    assert colors[0] != colors[1] == colors[2]
    assert len(rate.get_lines()) == 2


def with_cross_entropy(lines):
    """Returns the lines as runs write them now: the loss without its penalty too."""
    return [{**line, "cross_entropy": line["loss"] - 0.05} for line in lines]


def test_the_cross_entropy_is_drawn_where_the_metrics_have_it(config):
    run = run_in(config, with_cross_entropy(TRAIN + EVAL))
    losses = learning_curve.draw([run]).axes[0]
    assert losses.get_title(loc="left") == "Cross-entropy"
    assert losses.get_lines()[0].get_ydata() == pytest.approx([0.15, 0.05, 1 / 60])
    assert losses.get_lines()[1].get_xydata().tolist() == [[3.0, 1.45]]


def test_an_older_run_shows_the_sum_and_says_so(config):
    old = run_in(config, TRAIN + EVAL)
    losses = learning_curve.draw([old]).axes[0]
    assert losses.get_title(loc="left") == "Cross-entropy plus weight penalty"
    # A run that was resumed by a newer version has only some of the numbers.
    mixed = run_in(config, TRAIN + with_cross_entropy(EVAL))
    losses = learning_curve.draw([mixed]).axes[0]
    assert losses.get_title(loc="left") == "Cross-entropy plus weight penalty"
    assert losses.get_lines()[1].get_xydata().tolist() == [[3.0, 1.5]]
    new = dataclasses.replace(config, recipe="mine")
    runs = [old, run_in(new, with_cross_entropy(TRAIN + EVAL))]
    losses = learning_curve.draw(runs).axes[0]
    expected = "Cross-entropy (digits: plus weight penalty)"
    assert losses.get_title(loc="left") == expected


def losses_of(config, train_losses, eval_losses) -> Axes:
    numbers = {"learning_rate": 0.1}
    lines = [
        jsonl.make_line("train", step, step / 10, {"loss": loss, **numbers})
        for step, loss in enumerate(train_losses, start=1)
    ]
    numbers = {"top1": 0.5, "top5": 0.75, "count": 1234}
    lines += [
        jsonl.make_line("eval", step, step / 10, {"loss": loss, **numbers})
        for step, loss in enumerate(eval_losses, start=1)
    ]
    return learning_curve.draw([run_in(config, lines)]).axes[0]


def test_one_outlier_does_not_squeeze_the_losses_and_is_named(config):
    train_losses = [3 - 0.02 * step for step in range(100)]
    losses = losses_of(config, train_losses, [2.5, 1000.0, 2.0])
    low, high = losses.get_ylim()
    assert low < 1.02 < 3 < high < 3.2
    assert [text.get_text() for text in losses.texts] == ["1e+03"]
    point = next(line for line in losses.get_lines() if line.get_marker() == "^")
    assert point.get_xdata().tolist() == [0.2]
    assert low < point.get_ydata()[0] < high
    assert "beyond the axis" in drawn(losses)


def test_a_loss_that_is_not_finite_leaves_the_axis_as_it_is(config):
    train_losses = [3 - 0.02 * step for step in range(100)]
    expected = losses_of(config, train_losses, [2.5]).get_ylim()
    losses = losses_of(config, [*train_losses, float("nan"), float("inf")], [2.5])
    assert losses.get_ylim() == pytest.approx(expected)
    assert learning_curve.robust_limits([float("nan")]) == (0.0, 1.0)
    assert learning_curve.robust_limits([2.0, 2.0]) == (1.5, 2.5)


def test_runs_of_one_recipe_are_called_by_their_folders(config):
    other = dataclasses.replace(config, model_dir="somewhere/seed-1")
    _, accuracy, _ = learning_curve.draw(
        [run_in(config, TRAIN + EVAL), run_in(other, TRAIN + EVAL)]
    ).axes
    assert list(drawn(accuracy)) == ["model: 50.00 %", "seed-1: 50.00 %"]


def test_runs_in_folders_of_the_same_name_are_told_apart(config):
    runs = [
        Run(pathlib.Path(folder), config, TRAIN + EVAL)
        for folder in ("a/model", "b/model")
    ]
    _, accuracy, _ = learning_curve.draw(runs).axes
    assert list(drawn(accuracy)) == ["a/model: 50.00 %", "b/model: 50.00 %"]


def test_dollar_signs_in_names_are_no_formulas(config, tmp_path):
    runs = [
        Run(pathlib.Path(folder), config, TRAIN + EVAL)
        for folder in ("x$_^$", "y$b^^$")
    ]
    figure_file.write(learning_curve.draw(runs), tmp_path / "c.png", "--picture")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_suffix_says_the_format(config, tmp_path):
    figure = learning_curve.draw([run_in(config, TRAIN)])
    figure_file.write(figure, tmp_path / "curve.svg", "--picture")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_the_program_draws_several_runs(config, tmp_path):
    write_metrics(config, TRAIN + EVAL)
    picture = tmp_path / "both.png"
    both = f"--model_dir={config.model_dir},{config.model_dir}"
    done = run(learning_curve, both, f"--picture={picture}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_the_program_draws_into_the_runs_folder_and_says_where(config):
    write_metrics(config, TRAIN + EVAL)
    done = run(learning_curve, f"--model_dir={config.model_dir}")
    picture = pathlib.Path(config.model_dir, "learning_curve.png")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_without_metrics_it_says_so(config):
    done = run(learning_curve, f"--model_dir={config.model_dir}")
    assert_refused(done, "expected training metrics")


@pytest.mark.parametrize("missing", ["loss", "top5"])
def test_a_line_without_what_is_drawn_is_named(config, missing):
    incomplete = {name: EVAL[0][name] for name in EVAL[0] if name != missing}
    write_metrics(config, [*TRAIN, incomplete])
    done = run(learning_curve, f"--model_dir={config.model_dir}")
    assert_refused(done, f"must have {missing}; that of step 30 has none")


def test_metrics_that_can_not_be_read_are_named(config):
    pathlib.Path(config.model_dir, jsonl.FILE).mkdir(parents=True)
    done = run(learning_curve, f"--model_dir={config.model_dir}")
    assert_refused(done, "reading ")


def test_without_a_run_it_says_so(tmp_path):
    (tmp_path / jsonl.FILE).write_text(jsonl.encode(TRAIN[0]))
    assert_refused(run(learning_curve, f"--model_dir={tmp_path}"), "config.json")
    assert_refused(run(learning_curve), "--model_dir is required")


def test_a_format_that_cannot_be_drawn_is_a_users_mistake(config, tmp_path):
    write_metrics(config, TRAIN)
    done = run(
        learning_curve,
        f"--model_dir={config.model_dir}",
        f"--picture={tmp_path / 'a.xyz'}",
    )
    assert_refused(done, "--picture must end in .png, .svg or .pdf; got ")
