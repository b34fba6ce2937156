"""The pictures: what is drawn where, and how they are written."""

import dataclasses
import math
from typing import Any

import pytest
from PIL import Image

from eval.lab import study_figure
from eval.lab.study_figure import StudyRow
from resnet.base.errors import UserError
from resnet.config.config import Config, Derived
from resnet.config.recipes import digits, imagenet
from resnet.config.resolve import resolve
from resnet.metrics import figure, jsonl
from resnet.metrics.figure import LoggedRun


@pytest.fixture(scope="module")
def config() -> Config:
    return resolve(digits.DIGITS, {}, 1437, tuple("abcdef"))


def lines_of(train_losses, eval_losses) -> list[jsonl.Line]:
    """Returns the lines of a run that logs and evaluates at each tenth of an epoch."""
    evaluation = {"top1": 0.5, "top5": 0.75, "count": 1234}
    return [
        jsonl.make_line(kind, step, step / 10, {"cross_entropy": loss, **numbers})
        for kind, losses, numbers in (
            ("train", train_losses, {}),
            ("eval", eval_losses, evaluation),
        )
        for step, loss in enumerate(losses, 1)
    ]


def empty() -> Any:
    from matplotlib.figure import Figure  # Here, since every process reads this file.

    return Figure()


def points(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """Returns the points of each line that has a label."""
    return {
        str(line.get_label()): [tuple(map(float, point)) for point in line.get_xydata()]
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")],
)
def test_the_suffix_says_the_format(tmp_path, suffix, begin):
    image = tmp_path / "new folder" / f"one{suffix}"
    figure.write(empty(), image, "--picture")
    assert image.read_bytes().startswith(begin)
    assert list(image.parent.iterdir()) == [image]


@pytest.mark.parametrize("name", ["one.doc", "one", "one.PNG", ".png", "file/x.png"])
def test_another_suffix_or_place_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"--picture.* .*/{name}"):
        figure.write(empty(), tmp_path / name, "--picture")


def test_a_schedule_begins_with_the_first_phase_that_is_trained(tmp_path):
    recipe = imagenet.COLLAPSE_72EP_4K
    config = resolve(recipe, {"first_phase": "cyc3"}, recipe.num_train_examples, ("a",))
    drawn = figure.schedule(Derived(config, 1))
    rate = drawn.axes[0]
    begins = [line.get_xdata()[0] for line in rate.lines]
    assert begins == [config.epoch(16_300), config.epoch(21_050)]
    assert [text.get_text() for text in rate.texts] == [" cyc3", " collapse"]
    figure.write(drawn, tmp_path / "plan.png", "--explain_plot")
    with Image.open(tmp_path / "plan.png") as image:
        assert image.size == (990, 660)
        assert len(image.convert("RGB").getcolors(2**20)) > 10  # Not an empty page.


def test_a_run_is_drawn_with_its_numbers(config):
    run = LoggedRun("digits", config, lines_of([2.0, 1.0, 0.5], [1.5]))
    drawn = figure.learning_curves([run])
    losses, accuracy, rate = drawn.axes
    assert losses.get_lines()[0].get_xydata().tolist() == [
        [0.1, 2.0],
        [0.2, 1.0],
        [0.3, 0.5],
    ]
    assert losses.get_lines()[1].get_xydata().tolist() == [[0.1, 1.5]]
    assert points(accuracy) == {
        "top-5: 75.00 %": [(0.1, 75.0)],
        "top-1: 50.00 %": [(0.1, 50.0)],
    }
    assert accuracy.get_title(loc="left") == "Validation accuracy on 1,234 images, %"
    few = dataclasses.replace(config, num_classes=5)
    accuracy = figure.learning_curves([dataclasses.replace(run, config=few)]).axes[1]
    assert list(points(accuracy)) == ["top-1: 50.00 %"]
    assert len(rate.get_lines()[0].get_ydata()) == 3  # Of each step.
    without = figure.learning_curves([LoggedRun("a", config, lines_of([2.0], []))])
    title = without.axes[1].get_title(loc="left")
    assert title == "Validation accuracy: none yet, %"
    assert drawn.get_suptitle().startswith("resnet18 at 32 px, recipe digits, batch 64")


def test_several_runs_are_drawn_over_one_another_by_their_names(config, tmp_path):
    other = dataclasses.replace(config, recipe="x$_^$")
    average = jsonl.make_line("eval_ema", 30, 3.0, {"top1": 0.625})
    lines = lines_of([1.0], [1.0])
    runs = [
        LoggedRun("digits", config, lines),
        LoggedRun("b", other, [*lines, average]),
    ]
    drawn = figure.learning_curves(runs)
    _, accuracy, rate = drawn.axes
    assert points(accuracy) == {
        "digits: 50.00 %": [(0.1, 50.0)],
        "b: 50.00 %": [(0.1, 50.0)],
        "b, EMA weights: 62.50 %": [(3.0, 62.5)],
    }
    colors = [line.get_color() for line in accuracy.get_lines()]
    assert colors[0] != colors[1] == colors[2]
    assert len(rate.get_lines()) == 2
    assert "recipe" not in drawn.get_suptitle()
    # A name with dollar signs is no formula.
    figure.write(
        figure.learning_curves([LoggedRun("y$b^^$", other, lines)] * 2),
        tmp_path / "curve.svg",
        "--picture",
    )


def test_one_outlier_does_not_squeeze_the_losses_and_is_named(config):
    def losses_of(train_losses, eval_losses) -> Any:
        run = LoggedRun("digits", config, lines_of(train_losses, eval_losses))
        return figure.learning_curves([run]).axes[0]

    train_losses = [3 - 0.02 * step for step in range(100)]
    losses = losses_of(train_losses, [2.5, 1000.0, 2.0])
    low, high = losses.get_ylim()
    assert low < 1.02 < 3 < high < 3.2
    assert [text.get_text().strip() for text in losses.texts] == ["1e+03"]
    triangle = next(line for line in losses.get_lines() if line.get_marker() == "^")
    assert triangle.get_xdata().tolist() == [0.2]
    assert low < triangle.get_ydata()[0] < high
    assert "beyond the axis" in points(losses)
    # A loss that is not finite leaves the axis as it is.
    unchanged = losses_of([*train_losses, math.nan, math.inf], [2.5]).get_ylim()
    assert unchanged == pytest.approx(losses_of(train_losses, [2.5]).get_ylim())


def test_an_estimate_marks_the_knee_and_the_limit():
    hours = {1: 64.0, 2: 33.0, 4: 20.0}
    parts = {1: {"compute": 1.0}, 4: {"compute": 0.6, "exchange": 0.4}}
    left, right = figure.estimate(hours, 2, 24.0, parts, "title").axes
    drawn = points(left)
    assert drawn["predicted"] == [(1, 64), (2, 33), (4, 20)]
    assert drawn["efficiency of 100 %"] == [(1, 64), (2, 32), (4, 16)]
    assert drawn["knee: 2 nodes"] == [(2, 33)]
    assert {y for _, y in drawn["24 h"]} == {24}
    heights = [[bar.get_height() for bar in bars] for bars in right.containers]
    assert heights == [[100, pytest.approx(60)], [0, 40]]
    without = figure.estimate(hours, 4, 0.0, parts, "title").axes[0]
    assert list(points(without)) == ["predicted", "efficiency of 100 %"]


def test_a_study_has_a_point_for_each_row_that_has_not_diverged():
    rows = [
        StudyRow("", "none", False, [50.0], [400.0], [1 / 60]),
        StudyRow("topk", "layerwise", True, [40.0, 10.0, 20.0], [20.0] * 3, [1.0] * 3),
        *(StudyRow(f"m{n}", "entiremodel", False, [], [], []) for n in range(9)),
    ]
    over_bytes, over_time = study_figure.draw(rows, "title").axes
    for axes, places in ((over_bytes, (400, 20)), (over_time, (1 / 60, 1))):
        assert axes.get_xscale() == "log"
        drawn = [bar.lines[0].get_xydata()[0].tolist() for bar in axes.containers]
        assert [x for x, _ in drawn] == pytest.approx(places)
        assert [y for _, y in drawn] == pytest.approx([50, 20])
    ends = over_bytes.containers[1].lines[2][0].get_segments()[0][:, 1]
    assert ends.tolist() == pytest.approx([10, 40])
