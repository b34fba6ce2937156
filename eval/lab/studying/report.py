"""The table of a study, in Markdown."""

import statistics
from collections.abc import Mapping, Sequence

from eval.lab.studying import rows
from eval.lab.studying.results import Result
from resnet.config.compression import METHODS, CompressionSettings

_HEADER = (
    *("method", "compress", "error feedback", "top-1 in %: median (min to max)", "n"),
    *("message bytes per step", "dense / message", "bytes sent per step"),
    *("compression error", "exchange share", "seconds per step", "minutes of training"),
)


def table(results: Mapping[CompressionSettings, Sequence[Result]]) -> str:
    """Returns a table with a line for each row; numbers are medians over its seeds.

    Trainings that diverged before their first measurement count as diverged only.

    Args:
        results: The results of each row, at least one.
    """
    dense = results.get(rows.DENSE, ())
    lines = [_line(_HEADER), _line(["---"] * len(_HEADER))]
    lines += [_line(_cells(row, found, dense)) for row, found in results.items()]
    return "\n".join(lines) + "\n"


def top1_percent(results: Sequence[Result]) -> list[float]:
    """Returns the accuracies of the trainings that have not diverged, in percent."""
    return [100 * result.top1 for result in results if result.top1 is not None]


def _cells(
    row: CompressionSettings, results: Sequence[Result], dense: Sequence[Result]
) -> list[str]:
    measured = [result for result in results if result.steps] or results

    def median(name: str) -> float:
        return statistics.median(getattr(result, name) for result in measured)

    message_bytes = median("message_bytes")
    ratio = "-"
    dense_bytes = [one.message_bytes for one in dense if one.steps]
    if dense_bytes and message_bytes:
        ratio = f"{statistics.median(dense_bytes) / message_bytes:,.1f}"
    errors = [one.compression_error for one in results if one.compression_error]
    seconds = [one.seconds / one.steps for one in results if one.steps]
    return [
        rows.method(row),
        "-" if row.compress == "none" else row.compress,
        _error_feedback(row),
        _accuracy(results),
        str(len(results)),
        f"{message_bytes:,.0f}",
        ratio,
        f"{median('bytes_sent'):,.0f}",
        f"{statistics.median(errors):.3g}" if errors else "-",
        f"{median('exchange_share'):.1%}".replace("%", " %"),
        f"{statistics.median(seconds):.3g}" if seconds else "-",
        f"{median('seconds') / 60:.1f}",
    ]


def _error_feedback(row: CompressionSettings) -> str:
    if row.compress == "none":
        return "-"
    if METHODS[row.method].has_momentum:
        return "built in"
    return "yes" if row.error_feedback else "no"


def _accuracy(results: Sequence[Result]) -> str:
    found = top1_percent(results)
    num_diverged = len(results) - len(found)
    diverged = f"{num_diverged} diverged" if num_diverged else ""
    if not found:
        return diverged
    text = f"{statistics.median(found):.2f}"
    if len(found) > 1:
        text += f" ({min(found):.2f} to {max(found):.2f})"
    return f"{text}, {diverged}" if diverged else text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
