"""Draws the learning curves of a training run, or of several, into a picture.

python eval/learning_curve.py --model_dir=MODEL
python eval/learning_curve.py --model_dir=MODEL,OTHER --picture=both.png
"""

import io
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import matplotlib
from absl import flags

from data_prep import atomic_files, errors
from data_prep.errors import UserError
from resnet import config as configs
from resnet import shared_flags  # noqa: F401 - defines --model_dir.
from resnet.config import Config
from resnet.metrics_file import FILE as METRICS_FILE
from resnet.metrics_file import Line, read

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

FLAGS = flags.FLAGS

flags.DEFINE_string("picture", None, "File to write; else learning_curve.png in it.")

# How each kind of evaluation is drawn, and what its label adds.
EVALUATIONS = {"eval": ("o-", ""), "eval_ema": ("s--", ", average")}
BLUE, ORANGE, GREY = "#2a6fb0", "#d1662a", "#666666"


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
    runs = [load(pathlib.Path(folder)) for folder in FLAGS.model_dir.split(",")]
    first = pathlib.Path(FLAGS.model_dir.split(",")[0])
    picture = pathlib.Path(FLAGS.picture or first / "learning_curve.png")
    if len(runs) == 1:
        draw(runs[0].lines, runs[0].config, picture)
    else:
        draw_together(runs, picture)
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


def draw(lines: Sequence[Line], config: Config, picture: pathlib.Path) -> None:
    """Writes a picture of loss, accuracy and learning rate over the epochs.

    Args:
        lines: Of `metrics.jsonl`, at least one of kind "train".
        config: The run's settings.
        picture: The file; its suffix says the format.
    """
    train = [line for line in lines if line["kind"] == "train"]
    evals = [line for line in lines if line["kind"] == "eval"]
    epochs = [line["epoch"] for line in train]
    figure, (losses, accuracy, rate) = plt.subplots(1, 3, figsize=(12, 3.6))

    losses.plot(epochs, [line["loss"] for line in train], color=BLUE, label="training")
    eval_epochs = [line["epoch"] for line in evals]
    eval_losses = [line["loss"] for line in evals]
    losses.plot(eval_epochs, eval_losses, "o", color=ORANGE, label="validation")
    losses.set_title("Loss", loc="left")
    losses.legend(frameon=False)

    for name, label, color in (("top5", "top-5", GREY), ("top1", "top-1", ORANGE)):
        percents = [100 * line[name] for line in evals]
        last = f": {percents[-1]:.2f} %" if percents else ""
        accuracy.plot(eval_epochs, percents, "o-", color=color, label=label + last)
    count = f" on {evals[-1]['count']:,} images" if evals else ": not evaluated yet"
    accuracy.set_title(f"Validation accuracy{count}, %", loc="left")
    accuracy.set_ylim(0, 102)
    accuracy.legend(frameon=False, loc="lower right")

    rate.plot(epochs, [line["learning_rate"] for line in train], color=BLUE)
    rate.set_title("Learning rate", loc="left")
    rate.set_ylim(bottom=0)

    figure.suptitle(
        f"{config.model} at {config.image_size} px, recipe {config.recipe},"
        f" batch {config.global_batch_size:,}, {config.train_steps:,} steps",
        x=0.01,
        ha="left",
    )
    _finish(figure, picture, max(epochs))


def draw_together(runs: Sequence[Run], picture: pathlib.Path) -> None:
    """Writes a picture of the loss, accuracy and learning rate of several runs.

    Args:
        runs: Each gets a colour, and the name of its recipe.
        picture: The file; its suffix says the format.
    """
    figure, (losses, accuracy, rate) = plt.subplots(1, 3, figsize=(12, 3.9))
    last_epoch = 0.0
    for number, run in enumerate(runs):
        color = f"C{number}"
        epochs = run.column("train", "epoch")
        last_epoch = max(last_epoch, *epochs)
        losses.plot(epochs, run.column("train", "loss"), color=color, linewidth=1)
        rate.plot(epochs, run.column("train", "learning_rate"), color=color)
        for kind, style, whose in (
            ("eval", "o-", ""),
            ("eval_ema", "s--", ", average"),
        ):
            percents = [100 * value for value in run.column(kind, "top1")]
            if percents:
                accuracy.plot(
                    run.column(kind, "epoch"),
                    percents,
                    style,
                    color=color,
                    markersize=4,
                    label=f"{run.config.recipe}{whose}: {percents[-1]:.2f} %",
                )
    losses.set_title("Training loss", loc="left")
    accuracy.set_title("Validation top-1, %", loc="left")
    accuracy.legend(frameon=False, loc="lower right", fontsize=9)
    rate.set_title("Learning rate", loc="left")
    rate.set_yscale("symlog", linthresh=1e-2)
    _finish(figure, picture, last_epoch)


def _finish(figure: Figure, picture: pathlib.Path, last_epoch: float) -> None:
    """Gives all axes their scale of epochs, and writes the file."""
    for axes in figure.axes:
        axes.set_xlabel("epoch")
        axes.set_xlim(0, last_epoch * 1.02)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=picture.suffix.lstrip("."), dpi=110)
    except ValueError as error:
        raise UserError(f"--picture must end in .png, .svg or .pdf: {error}") from error
    finally:
        plt.close(figure)
    picture.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.atomic_write_bytes(picture, drawn.getvalue())


def run() -> None:
    """Runs the program and exits."""
    errors.run(main)


if __name__ == "__main__":
    run()
