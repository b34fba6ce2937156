"""A figure of learning rate, weight decay and momentum of a run over its epochs."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resnet.config.config import Config
from resnet.config.explain import description, facts

_MOST_POINTS = 20_000
_BLUE, _GREY = "#2a6fb0", "#999999"


def plot(
    axes: Axes, config: Config, curve: Callable[[int], float], steps: range, color: str
) -> None:
    """Draws one of `description.curves` over the epochs of some steps of a run."""
    drawn = steps[:: max(1, len(steps) // _MOST_POINTS)]
    epochs = [config.epoch(step) for step in drawn]
    axes.plot(epochs, [curve(step) for step in drawn], color=color)


def draw(config: Config) -> Figure:
    """Returns a figure of learning rate, weight decay and momentum over the epochs."""
    curves = description.curves(config)
    figure = Figure(figsize=(9, 6))
    all_axes = figure.subplots(len(curves), 1, sharex=True, height_ratios=(3, 1, 1))
    begins = dict(facts.trained_phases(config))
    trained = range(min(begins), config.train_steps)
    for axes, (name, curve) in zip(all_axes, curves.items(), strict=True):
        plot(axes, config, curve, trained, _BLUE)
        axes.set_ylim(bottom=0)
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        for first in list(begins)[1:]:
            axes.axvline(config.epoch(first), color=_GREY, linewidth=0.8, zorder=0)
    if len(config.phases) > 1:
        for first, phase in begins.items():
            all_axes[0].annotate(
                phase.name,
                (config.epoch(first), 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -10),
                textcoords="offset points",
                fontsize=8,
                color="#555555",
            )
    all_axes[-1].set_xlabel(f"epoch of {config.num_train_examples:,} images")
    steps_of_epoch = config.num_train_examples / config.global_batch_size
    steps = all_axes[-1].secondary_xaxis(
        -0.75,
        functions=(lambda epoch: epoch * steps_of_epoch, config.epoch),
    )
    steps.xaxis.set_major_formatter("{x:,.0f}")
    steps.set_xlabel(f"step of {config.global_batch_size:,} images")
    figure.suptitle(
        f"{config.recipe}: batch {config.global_batch_size:,}, {len(trained):,} steps",
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    return figure
