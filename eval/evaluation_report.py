"""The report of an evaluation: log lines like the published runs', and JSON."""

import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from resnet.base import atomic_files
from resnet.metrics.class_metrics import ByClass, ByLabel, TwoClasses

if TYPE_CHECKING:
    from resnet.evaluation.evaluator import Result


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What a result belongs to: checkpoints, weights, and how they were evaluated."""

    steps: Sequence[int]  # Ascending.
    weights: str  # "raw" or "ema", the exponential moving average of the weights.
    combine: str  # What is averaged: "weights", "predictions", or "none".
    views: str = "center"
    recalibration_batches: int = 0
    # The first digits of the digest of the records, if they aren't those of the run.
    other_records: str = ""

    def __str__(self) -> str:
        steps = ", ".join(map(str, self.steps))
        name = f"step {steps}"
        if self.combine != "none":
            name = f"mean {self.combine} of steps {steps}"
        return ", ".join([name, *filter(None, (text for text, _ in self._options()))])

    def _options(self) -> Iterator[tuple[str, str]]:
        """Yields what isn't usual, for texts and for the names of files."""
        if self.weights == "ema":
            yield "EMA weights", "-ema"
        if self.views != "center":
            yield "", f"-{self.views}"  # The text of a result has them.
        if number := self.recalibration_batches:
            yield f"PreciseBN of {number} batches", f"-precise-bn-{number}"
        if self.other_records:
            yield f"other records ({self.other_records})", f"-of-{self.other_records}"

    @property
    def file_name(self) -> str:
        """The name of a file of this evaluation, which no other one has."""
        suffix = "".join(end for _, end in self._options())
        if self.combine == "none":
            return f"step-{self.steps[-1]:08d}{suffix}"
        checksum = zlib.crc32(",".join(map(str, self.steps)).encode())
        return (
            f"mean-{self.combine}-{self.steps[-1]:08d}-of-{len(self.steps)}"
            f"-{checksum:08x}{suffix}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for JSON; `steps` only for combined checkpoints."""
        steps = {} if self.combine == "none" else {"steps": list(self.steps)}
        return {"global_step": self.steps[-1], "weights": self.weights, **steps}


class EvaluationReport:
    """Logs, prints and writes each result."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        json_file: str,
        class_names: Sequence[str] = (),
    ) -> None:
        """Starts a report without results; an empty path is no JSON file."""
        self._settings = dict(settings)
        self._class_names = class_names
        self._json_file = json_file
        self._suffix = ", training images" if settings.get("split") == "train" else ""
        self._results: list[dict[str, Any]] = []

    def add(
        self, what: Evaluated, result: "Result", two: TwoClasses | None = None
    ) -> None:
        """Logs and prints a result, and writes all so far, the last one at the top.

        Of two classes, `two` has what follows from their probabilities.
        """
        name = f"{what}{self._suffix}"
        logging.info(
            "Saving dict for %s: %s, global_step = %d, loss = %.8g",
            f"global {name}" if name.startswith("step") else name,
            ", ".join(f"{title} = {x:.7g}" for title, x in result.headline.items()),
            what.steps[-1],
            result.loss,
        )
        numbers = {**what.as_dict(), **result.as_dict()}
        if (classes := result.by_class or result.by_label) is not None:
            numbers["classes"] = self._of_classes(classes)
        text = f"{name}: {result}"
        if two is not None:
            numbers["positive_class"] = self._class_names[two.positive]
            numbers["roc_auc"] = two.roc_auc
            numbers["thresholds"] = [row._asdict() for row in two.thresholds]
            text += f", ROC-AUC {two.roc_auc:.4f}"
        print(text, flush=True)
        self._results.append(numbers)
        if self._json_file:
            text = json.dumps(
                {**self._settings, "results": self._results, **self._results[-1]}
            )
            # JSON can't hold NaN and infinity: they become null.
            contents = json.loads(text, parse_constant=lambda _: None)
            text = json.dumps(contents, indent=2) + "\n"
            atomic_files.write_named(self._json_file, text.encode(), "--json_file")

    def _of_classes(self, of: ByClass | ByLabel) -> dict[str, dict[str, float]]:
        columns = of.columns()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            name: dict(zip(columns, row, strict=True))
            for name, row in zip(self._class_names, rows, strict=True)
        }


def check_json_file(json_file: str) -> None:
    """Refuses a file for the results that can't be written; an empty name is none."""
    if json_file:
        atomic_files.require_place(json_file, "--json_file")
