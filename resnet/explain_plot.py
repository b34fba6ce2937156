"""A picture of the rates of a run over its epochs."""

import io
import pathlib
from collections.abc import Callable

import matplotlib

from data_prep import atomic_files
from data_prep.errors import UserError
from resnet import explain, phases
from resnet.config import Config

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_MOST_POINTS = 20_000
_BLUE, _GREY = "#2a6fb0", "#999999"


def plot(
    axes: Axes, config: Config, curve: Callable[[int], float], steps: int, color: str
) -> None:
    """Draws one of `explain.curves` over the epochs of the first steps of a run."""
    drawn = range(0, steps, max(1, steps // _MOST_POINTS))
    epochs = [config.epoch(step) for step in drawn]
    axes.plot(epochs, [curve(step) for step in drawn], color=color)


def draw(config: Config, picture: pathlib.Path) -> None:
    """Writes learning rate, weight decay and momentum over the epochs.

    Args:
        config: The run's settings.
        picture: The file; its suffix says the format.

    Raises:
        UserError: If it can't be written, or has another suffix than .png, .svg, .pdf.
    """
    curves = explain.curves(config)
    figure, all_axes = plt.subplots(
        len(curves), 1, figsize=(9, 6), sharex=True, height_ratios=(3, 1, 1)
    )
    for axes, (name, curve) in zip(all_axes, curves.items(), strict=True):
        plot(axes, config, curve, config.train_steps, _BLUE)
        axes.set_ylim(bottom=0)
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        for first in phases.first_steps(config.phases)[1:]:
            axes.axvline(config.epoch(first), color=_GREY, linewidth=0.8, zorder=0)
    if len(config.phases) > 1:
        for first, phase in zip(
            phases.first_steps(config.phases), config.phases, strict=True
        ):
            all_axes[0].annotate(
                phase.name,
                (config.epoch(first), 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -10),
                textcoords="offset points",
                fontsize=8,
                color="#555555",
            )
    all_axes[-1].set_xlabel("epoch")
    figure.suptitle(
        f"{config.recipe}: batch {config.global_batch_size:,},"
        f" {config.train_steps:,} steps",
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=picture.suffix.lstrip("."), dpi=110)
        atomic_files.atomic_write_bytes(picture, drawn.getvalue())
    except (ValueError, OSError) as error:
        raise UserError(
            "--explain_plot must be a file that can be written and ends in .png, .svg"
            f" or .pdf: {error}"
        ) from error
    finally:
        plt.close(figure)
