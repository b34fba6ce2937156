"""A figure of predictions: hours over nodes, and the parts of a step."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from launch.estimating.prediction import Prediction

_BLUE, _GREY, _RED = "#2a6fb0", "#999999", "#c0392b"
_PARTS = {
    "compute": ("compute", _BLUE),
    "exchange": ("exchange, not overlapped", "#e08e2b"),
    "stragglers": ("waiting for the slowest node", "#7b5ea7"),
    "input": ("waiting for images", "#5a9e5a"),
}


def draw(
    predictions: Sequence[Prediction],
    shown: Sequence[Prediction],
    knee: Prediction,
    hours: float,
    title: str,
) -> Figure:
    """Returns a figure of the hours of a training, and of the parts of a step.

    Args:
        predictions: The predictions for all numbers of nodes, which rise.
        shown: Those whose parts are drawn.
        knee: The nodes at the knee; not marked if they are the last.
        hours: The time that is asked for; 0 for none.
        title: The title.
    """
    figure = Figure(figsize=(10, 4.5))
    left, right = figure.subplots(1, 2)
    nodes = [one.num_nodes for one in predictions]
    left.loglog(
        nodes, [one.hours for one in predictions], color=_BLUE, label="predicted"
    )
    alone = predictions[0].hours * predictions[0].num_nodes
    left.loglog(
        nodes,
        [alone / number for number in nodes],
        color=_GREY,
        linewidth=0.9,
        linestyle="--",
        label="efficiency of 100 %",
    )
    if knee is not predictions[-1]:
        left.plot(
            [knee.num_nodes],
            [knee.hours],
            "o",
            color=_RED,
            label=f"knee: {knee.num_nodes:,} nodes",
        )
    if hours:
        left.axhline(hours, color=_RED, linewidth=0.8, label=f"{hours:g} h")
    left.set_xscale("log", base=2)
    left.set_xlabel("nodes")
    left.set_ylabel("hours of training")
    left.legend(frameon=False, fontsize=8)
    left.grid(alpha=0.25)
    labels = [f"{one.num_nodes:,}" for one in shown]
    bottom = [0.0] * len(shown)
    for name, (label, color) in _PARTS.items():
        if not any(getattr(one, name) for one in shown):
            continue
        heights = [100 * getattr(one, name) / one.step_seconds for one in shown]
        right.bar(labels, heights, bottom=bottom, color=color, label=label)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    right.set_xlabel("nodes")
    right.set_ylabel("% of a step")
    right.set_ylim(0, 100)
    right.tick_params(axis="x", rotation=60, labelsize=8)
    right.legend(
        frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncol=2
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:,.0f}") if axes is left else None
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    return figure
