"""The metrics of a run: how the log, the progress line and the report show each.

What computes a metric names the number in a line of `metrics.jsonl` and TensorBoard.
All else is its row here. One without a row has a chart, too, under its name.
"""

from dataclasses import dataclass

RANK_SPEEDS = "rank_images_per_second"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How a number of `ExchangeAccount` becomes a metric: by its mean over steps."""

    number: str
    is_whole: bool = False


@dataclass(frozen=True)
class Series:
    """A metric."""

    name: str  # Its name in the lines.
    label: str = ""  # What the legend calls it; may be empty.
    progress: str = ""  # Its text in the progress line, with `{}` for the number.
    exchange: Exchange | None = None  # The number of each step whose mean it is.


@dataclass(frozen=True)
class Metric:
    """A metric, or several that are drawn together."""

    title: str  # The title of the chart; empty if there is none.
    series: tuple[Series, ...]
    unit: str = ""  # Of the axis; "%" multiplies the values by 100.
    is_noisy: bool = False  # Whether a smoothed line helps.
    has_outliers: bool = False  # Which the axis leaves out.
    starts_at_zero: bool = True
    # Whether its values are lists with a number of each rank.
    is_of_ranks: bool = False
    about: str = ""  # A sentence on what the chart shows; may be empty.
    is_result: bool = False  # Rather than a diagnostic, which a report shows later.


def _accuracy(title: str, name: str) -> Metric:
    return Metric(title, (Series(name),), "%", starts_at_zero=False, is_result=True)


_SENT = Exchange(number="bytes_sent", is_whole=True)
_MESSAGES = Exchange(number="message_bytes", is_whole=True)
_ERROR = Exchange(number="compression_error")
METRICS = (
    Metric("", (Series("loss"),)),
    Metric("", (Series("count"), Series("seconds"))),  # Of an evaluation.
    _accuracy("Top-1 accuracy", "top1"),
    Metric(
        "Cross-entropy",
        (Series("cross_entropy", progress="cross-entropy {:.4f}"),),
        is_noisy=True,
        has_outliers=True,
        starts_at_zero=False,
        about="Without the weight penalty.",
        is_result=True,
    ),
    _accuracy("Top-5 accuracy", "top5"),
    Metric(
        "Balanced accuracy and macro F1",
        (
            Series("balanced_accuracy", "balanced accuracy"),
            Series("macro_f1", "macro F1"),
        ),
        "%",
        starts_at_zero=False,
        about="Means over the classes of recall and of F1.",
    ),
    _accuracy("Mean average precision", "mean_average_precision"),
    Metric(
        "Mean ROC-AUC",
        (Series("mean_roc_auc"),),
        starts_at_zero=False,
        about="Means over the labels of an image, of which it has any number.",
    ),
    Metric(
        "Learning rate",
        (Series("learning_rate", progress="lr {:.5g}"),),
        about="From the schedule before the first logged step.",
        is_result=True,
    ),
    Metric(
        "Weight penalty",
        (Series("weight_penalty", progress="penalty {:.4f}"),),
        starts_at_zero=False,
    ),
    Metric(
        "Images per second",
        (Series("images_per_second", progress="{:,.1f} images/s"),),
        "images/s",
        is_noisy=True,
        about="Over all ranks.",
    ),
    Metric(
        "Time spent waiting",
        (
            Series("input_wait_share", "for input"),
            Series("exchange_share", "for the exchange"),
        ),
        "%",
        is_noisy=True,
        about="For input on the slowest rank; for the exchange of gradients on rank 0,"
        " where Muon computes some updates meanwhile.",
    ),
    Metric(
        "Bytes of gradients per step",
        (
            Series("bytes_sent_per_step", "sent", exchange=_SENT),
            Series("message_bytes_per_step", "messages", exchange=_MESSAGES),
        ),
        "bytes",
        about="Of rank 0. The messages are its gradients, coded if compressed. With"
        " Muon, it sends updates too.",
    ),
    Metric(
        "Error of compression",
        (Series("compression_error", exchange=_ERROR),),
        is_noisy=True,
        about="Norm of the compression error, divided by the norm of the gradients.",
    ),
    Metric(
        "Staleness",
        (Series("staleness_mean", "mean"), Series("staleness_max", "largest")),
        "updates",
        about="Updates of the servers between a worker's read and its update.",
    ),
    Metric("Skipped records", (Series("skipped_records"),), "records"),
    Metric(
        "Images per second of each rank",
        (Series(RANK_SPEEDS),),
        "images/s",
        is_noisy=True,
        is_of_ranks=True,
        about="While it computes: without the time in which it waits for input and for"
        " the exchange. The slowest rank sets the pace of all.",
    ),
)
SERIES = {series.name: series for metric in METRICS for series in metric.series}
OF_RANKS = {
    series.name for metric in METRICS for series in metric.series if metric.is_of_ranks
}
