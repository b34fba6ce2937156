"""Draws the learning curves of one or several training runs.

python eval/learning_curve.py --model_dir=MODEL
python eval/learning_curve.py --model_dir=MODEL,OTHER --picture=both.png
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from resnet import shared_flags
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.config import Config, load_config
from resnet.config.explain import description
from resnet.metrics import figure_file
from resnet.metrics.jsonl import FILE as METRICS_FILE
from resnet.metrics.jsonl import Line, read
from resnet.report.charts.series import robust_limits
from resnet.report.folder import names_of

if TYPE_CHECKING:  # Imported when a figure is drawn.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "picture",
    None,
    "File to write the figure to. By default learning_curve.png in the first folder.",
)

# The line style of each kind of evaluation, and the suffix of its label.
EVALUATIONS = {"eval": ("o-", ""), "eval_ema": ("s--", ", EMA weights")}
_DRAWN = {  # The metrics that are drawn, by the kind of their line.
    "train": ("epoch", "loss", "learning_rate"),
    "eval": ("epoch", "loss", "top1", "top5", "count"),
    "eval_ema": ("epoch", "top1"),
}
GREY = "#666666"


@dataclass(frozen=True)
class Run:
    """The settings and metrics of a run.

    Attributes:
        folder: The folder of the run.
        config: The settings of the run.
        lines: The lines of `metrics.jsonl`, at least one of kind "train".
    """

    folder: pathlib.Path
    config: Config
    lines: Sequence[Line]

    def column(self, kind: str, name: str) -> list[float]:
        """Returns the values of a metric in all lines of a kind."""
        return [line[name] for line in self.lines if line["kind"] == kind]

    @property
    def loss_name(self) -> str:
        """The name of the loss to draw: "cross_entropy", or "loss" for older runs.

        "loss" is the sum of cross-entropy and weight penalty. Older runs have no other.
        """
        drawn = [line for line in self.lines if line["kind"] in ("train", "eval")]
        has_all = all("cross_entropy" in line for line in drawn)
        return "cross_entropy" if has_all else "loss"


def main() -> None:
    """Draws the runs that the flags name."""
    if not FLAGS.model_dir:
        raise UserError("--model_dir is required and must name a folder.")
    names = FLAGS.model_dir.split(",")
    if pathlib.Path(FLAGS.model_dir).is_dir():  # One folder, whose name has a comma.
        names = [FLAGS.model_dir]
    folders = [pathlib.Path(name) for name in names]
    picture = pathlib.Path(FLAGS.picture or folders[0] / "learning_curve.png")
    figure = draw([load(folder) for folder in folders])
    figure_file.write(figure, picture, "--picture")
    print(picture)


def load(model_dir: pathlib.Path) -> Run:
    """Returns the run in a folder.

    Raises:
        UserError: If there is no run, it has no metrics yet, or a line lacks a metric
            that is drawn.
    """
    metrics = model_dir / METRICS_FILE
    with errors.naming_failures(f"reading {metrics}"):
        lines = read(metrics) if metrics.exists() else []
    if not any(line["kind"] == "train" for line in lines):
        raise UserError(
            f"expected training metrics in {metrics}; there are none yet. Wait for the"
            " first log line, or name another --model_dir."
        )
    for line in lines:
        for name in _DRAWN.get(line["kind"], ()):
            if name not in line:
                raise UserError(
                    f"each line of kind {line['kind']} in {metrics} must have {name};"
                    f" that of step {line['step']} has none. Remove the line."
                )
    return Run(model_dir, load_config(str(model_dir)), lines)


def draw(runs: Sequence[Run]) -> "Figure":
    """Returns a figure of loss, accuracy and learning rate over the epochs.

    Args:
        runs: One run, whose settings are the title, or several, each in a color.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6))
    losses, accuracy, rate = figure.subplots(1, 3)
    _draw_losses(losses, runs)
    _draw_accuracy(accuracy, runs)
    _draw_learning_rate(rate, runs)
    figure.suptitle(_title(runs), x=0.01, ha="left")
    last_epoch = max(max(run.column("train", "epoch")) for run in runs)
    for axes in figure.axes:
        axes.set_xlabel("epoch")
        axes.set_xlim(0, 1.02 * last_epoch)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _draw_losses(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draws the cross-entropy; for older runs its sum with the weight penalty.

    The axis spans `robust_limits`. Each evaluation beyond its upper limit, and the
    largest training loss beyond it, is drawn as a triangle at the edge, with its value.
    """
    drawn = [
        (run.column(kind, "epoch"), run.column(kind, run.loss_name), kind, f"C{number}")
        for number, run in enumerate(runs)
        for kind in ("train", "eval")
    ]
    low, high = robust_limits([value for _, values, *_ in drawn for value in values])
    edge = low + 0.97 * (high - low)
    has_outliers = False
    for epochs, values, kind, color in drawn:
        is_training = kind == "train"
        style = "-" if is_training else "o"
        axes.plot(epochs, values, style, color=color, linewidth=1, markersize=4)
        beyond = [
            point for point in zip(epochs, values, strict=True) if point[1] > high
        ]
        if is_training and beyond:
            beyond = [max(beyond, key=lambda point: point[1])]
        has_outliers |= bool(beyond)
        for epoch, value in beyond:
            axes.plot(epoch, edge, "^", color=color)
            axes.annotate(
                f"{value:.3g}",
                (epoch, edge),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=color,
            )
    axes.set_ylim(low, high)
    axes.plot([], [], color=GREY, label="training")
    axes.plot([], [], "o", color=GREY, markersize=4, label="validation")
    if has_outliers:
        axes.plot([], [], "^", color=GREY, label="beyond the axis")
    axes.set_title(_loss_title(runs), loc="left")
    axes.legend(frameon=False, fontsize=9)


def _loss_title(runs: Sequence[Run]) -> str:
    """Returns the title of the loss panel; it names the runs drawn with the penalty."""
    with_penalty = [
        name
        for run, name in zip(runs, _names(runs), strict=True)
        if run.loss_name == "loss"
    ]
    if not with_penalty:
        return "Cross-entropy"
    if len(with_penalty) == len(runs):
        return "Cross-entropy plus weight penalty"
    return f"Cross-entropy ({', '.join(with_penalty)}: plus weight penalty)"


def _draw_accuracy(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draws top-1 accuracy; for a single run top-5 accuracy too."""
    is_alone = len(runs) == 1
    for number, (run, name) in enumerate(zip(runs, _names(runs), strict=True)):
        if is_alone:
            _add_accuracy(axes, run, "eval", "top5", "top-5", "o-", GREY)
        for kind, (style, suffix) in EVALUATIONS.items():
            label = ("top-1" if is_alone else name) + suffix
            _add_accuracy(axes, run, kind, "top1", label, style, f"C{number}")
    counts = {f"{count:,}" for run in runs for count in run.column("eval", "count")}
    on = f" on {' and '.join(sorted(counts))} images" if counts else ": none yet"
    axes.set_title(
        f"Validation {'accuracy' if is_alone else 'top-1'}{on}, %", loc="left"
    )
    axes.set_ylim(0, 102)
    if counts:
        axes.legend(frameon=False, loc="lower right", fontsize=9)


def _draw_learning_rate(axes: "Axes", runs: Sequence[Run]) -> None:
    """Draws the learning rate of each step that each run has finished."""
    from resnet.config.explain import figure as plan_figure  # It imports matplotlib.

    for number, run in enumerate(runs):
        curve = description.curves(run.config)["learning rate"]
        first = phases.first_step(run.config.phases, run.config.first_phase)
        trained = range(first, int(max(run.column("train", "step"))))
        plan_figure.plot(axes, run.config, curve, trained, f"C{number}")
    axes.set_title("Learning rate", loc="left")
    axes.set_ylim(bottom=0)


def _add_accuracy(
    axes: "Axes", run: Run, kind: str, name: str, label: str, style: str, color: str
) -> None:
    """Draws an accuracy of all evaluations of a kind; the label has the last value."""
    percents = [100 * fraction for fraction in run.column(kind, name)]
    if percents:
        label = f"{label}: {percents[-1]:.2f} %"
        epochs = run.column(kind, "epoch")
        axes.plot(epochs, percents, style, color=color, label=label, markersize=4)


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns the name of each run: its recipe, or its folder if recipes repeat."""
    names = [run.config.recipe for run in runs]
    if len(set(names)) < len(names):
        names = names_of([run.folder for run in runs])
    return [_without_formulas(name) for name in names]


def _title(runs: Sequence[Run]) -> str:
    """Returns the settings that the runs have in common."""
    settings = [
        (
            f"{config.model} at {config.image_size} px",
            f"recipe {config.recipe}",
            f"batch {config.global_batch_size:,}",
            f"{config.train_steps:,} steps",
        )
        for config in (run.config for run in runs)
    ]
    common = [
        values[0] for values in zip(*settings, strict=True) if len(set(values)) == 1
    ]
    return _without_formulas(", ".join(common))


def _without_formulas(text: str) -> str:
    """Returns a text of which matplotlib draws each dollar sign as it is."""
    return text.replace("$", r"\$")


def run() -> None:
    """Runs the program and exits."""
    shared_flags.keep_only(("model_dir",))
    errors.run(main)


if __name__ == "__main__":
    run()
