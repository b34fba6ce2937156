"""Draws the learning curves of a training run, or of several, into a picture.

python eval/learning_curve.py --model_dir=MODEL
python eval/learning_curve.py --model_dir=MODEL,OTHER --picture=both.png
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import flags
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep import errors
from data_prep.errors import UserError
from resnet import config as configs
from resnet import (
    explain,
    explain_plot,
    phases,
    picture_file,
    shared_flags,  # noqa: F401 - defines --model_dir.
)
from resnet.config import Config
from resnet.metrics_file import FILE as METRICS_FILE
from resnet.metrics_file import Line, read

FLAGS = flags.FLAGS

flags.DEFINE_string("picture", None, "File to write; else learning_curve.png in it.")

# How each kind of evaluation is drawn, and what its label adds.
EVALUATIONS = {"eval": ("o-", ""), "eval_ema": ("s--", ", average of weights")}
GREY = "#666666"


@dataclass(frozen=True)
class Run:
    """What a run has written.

    Attributes:
        config: Its settings.
        lines: Of `metrics.jsonl`, at least one of kind "train".
    """

    config: Config
    lines: Sequence[Line]

    def column(self, kind: str, name: str) -> list[float]:
        """Returns a number of each line of a kind."""
        return [line[name] for line in self.lines if line["kind"] == kind]


def main() -> None:
    """Draws what the flags say."""
    if not FLAGS.model_dir:
        raise UserError("--model_dir is required and must name a folder.")
    folders = [pathlib.Path(folder) for folder in FLAGS.model_dir.split(",")]
    picture = pathlib.Path(FLAGS.picture or folders[0] / "learning_curve.png")
    figure = draw([load(folder) for folder in folders])
    picture_file.write(figure, picture, "--picture")
    print(picture)


def load(model_dir: pathlib.Path) -> Run:
    """Returns the run in a folder.

    Raises:
        UserError: If there is none, or it has written nothing yet.
    """
    metrics = model_dir / METRICS_FILE
    lines = read(metrics) if metrics.exists() else []
    if not any(line["kind"] == "train" for line in lines):
        raise UserError(f"expected lines of training in {metrics}; there are none yet")
    return Run(configs.load(str(model_dir)), lines)


def draw(runs: Sequence[Run]) -> Figure:
    """Returns a drawing of loss, accuracy and learning rate over the epochs.

    Args:
        runs: One, whose settings are the title, or several, each in a colour.
    """
    figure = Figure(figsize=(12, 3.6))
    losses, accuracy, rate = figure.subplots(1, 3)
    is_alone = len(runs) == 1
    for number, (run, name) in enumerate(zip(runs, _names(runs), strict=True)):
        color = f"C{number}"
        epochs = run.column("train", "epoch")
        losses.plot(epochs, run.column("train", "loss"), color=color, linewidth=1)
        curve = explain.curves(run.config)["learning rate"]
        first = phases.first_step(run.config.phases, run.config.first_phase)
        trained = range(first, int(max(run.column("train", "step"))))
        explain_plot.plot(rate, run.config, curve, trained, color)
        if is_alone:
            _add_accuracy(accuracy, run, "eval", "top5", "top-5", "o-", GREY)
        for kind, (style, whose) in EVALUATIONS.items():
            label = ("top-1" if is_alone else name) + whose
            _add_accuracy(accuracy, run, kind, "top1", label, style, color)
        losses.plot(
            run.column("eval", "epoch"), run.column("eval", "loss"), "o", color=color
        )
    losses.plot([], [], color=GREY, label="training")
    losses.plot([], [], "o", color=GREY, label="validation")
    losses.set_title("Loss", loc="left")
    losses.legend(frameon=False)
    counts = {f"{count:,}" for run in runs for count in run.column("eval", "count")}
    on = f" on {' and '.join(sorted(counts))} images" if counts else ": none yet"
    what = "accuracy" if is_alone else "top-1"
    accuracy.set_title(f"Validation {what}{on}, %", loc="left")
    accuracy.set_ylim(0, 102)
    if counts:
        accuracy.legend(frameon=False, loc="lower right", fontsize=9)
    rate.set_title("Learning rate", loc="left")
    rate.set_ylim(bottom=0)
    figure.suptitle(_title(runs), x=0.01, ha="left")
    for axes in figure.axes:
        axes.set_xlabel("epoch")
        axes.set_xlim(0, 1.02 * max(max(run.column("train", "epoch")) for run in runs))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _add_accuracy(
    axes: Axes, run: Run, kind: str, name: str, label: str, style: str, color: str
) -> None:
    """Draws what evaluations of a kind found, with the last as a number."""
    percents = [100 * share for share in run.column(kind, name)]
    if percents:
        label = f"{label}: {percents[-1]:.2f} %"
        epochs = run.column(kind, "epoch")
        axes.plot(epochs, percents, style, color=color, label=label, markersize=4)


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns what to call each run: its recipe, or its folder if recipes are alike."""
    recipes = [run.config.recipe for run in runs]
    if len(set(recipes)) == len(recipes):
        return recipes
    return [pathlib.Path(run.config.model_dir).name for run in runs]


def _title(runs: Sequence[Run]) -> str:
    """Returns what the runs have in common."""
    facts = [
        (
            f"{config.model} at {config.image_size} px",
            f"recipe {config.recipe}",
            f"batch {config.global_batch_size:,}",
            f"{config.train_steps:,} steps",
        )
        for config in (run.config for run in runs)
    ]
    return ", ".join(
        each[0] for each in zip(*facts, strict=True) if len(set(each)) == 1
    )


def run() -> None:
    """Runs the program and exits."""
    errors.run(main)


if __name__ == "__main__":
    run()
