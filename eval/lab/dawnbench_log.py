"""Writes the accuracy over the hours of a training, as DAWNBench asks for it.

python eval/lab/dawnbench_log.py --model_dir=MODEL
python eval/lab/dawnbench_log.py --model_dir=MODEL --tsv_file=TSV

The run must have been evaluated after each epoch (--eval_every=1epoch).
MODEL/logs.tsv then has a line for each evaluation: epoch, hours of training
without evaluations and checkpoints, and top-1 accuracy in percent.

Source of the form: davidcpage/cifar10-fast, dawn.py, TSVLogger.
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from resnet.base import program  # Before imports that may fail.

# isort: split

import numpy as np

from eval.lab.trainings import hours_of_steps
from resnet.base import atomic_files, cli
from resnet.base.errors import UserError
from resnet.base.settings import setting
from resnet.config.config import Config, load_config
from resnet.metrics.jsonl import FILE as METRICS_FILE
from resnet.metrics.jsonl import Line, read


@dataclass(frozen=True)
class LogSettings:
    """Where the table goes."""

    tsv_file: str = setting(
        "", "File to write. By default logs.tsv in the run's folder."
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("model_dir",), common=True),
    cli.Flags(LogSettings, common=True),
)

HEADER = "epoch\thours\ttop1Accuracy"


def main(argv: Sequence[str]) -> int:
    """Writes the file of the run that the flags name."""
    line = cli.parse(argv, __doc__, FLAGS)
    if not line.values["model_dir"]:
        raise UserError("--model_dir is required and must name a folder.")
    folder = pathlib.Path(line.values["model_dir"])
    config = load_config(str(folder))
    metrics = folder / METRICS_FILE
    lines = read(metrics) if metrics.exists() else []
    text = table(config, lines, str(metrics))
    path = pathlib.Path(line.of(LogSettings).tsv_file or folder / "logs.tsv")
    atomic_files.write_named(path, text.encode(), "--tsv_file")
    print(path)
    return 0


def table(config: Config, lines: Sequence[Line], metrics: str) -> str:
    """Returns the text of the file, from the lines of the file `metrics`.

    Raises UserError if there are no evaluations, or not only at the ends of epochs.
    """
    evaluations = [line for line in lines if line["kind"] == "eval"]
    trained = [line for line in lines if line["kind"] == "train"]
    if not evaluations or not trained:
        raise UserError(
            f"expected lines of training and of evaluation in {metrics}; there are"
            f" {len(trained)} and {len(evaluations)}. Train with --eval_every=1epoch."
        )
    steps, hours = hours_of_steps(config, trained, metrics)
    rows = [HEADER]
    for line in evaluations:
        epochs = config.epoch(line["step"])
        epoch = round(epochs)
        if abs(epochs - epoch) * config.steps_per_epoch > 1:
            raise UserError(
                f"{metrics} must have evaluations only at the ends of epochs; that of"
                f" step {line['step']} is at epoch {epochs:.2f}. Train with"
                " --eval_every=1epoch."
            )
        hour = np.interp(line["step"], steps, hours)
        rows.append(f"{epoch}\t{hour:.8f}\t{100 * line['top1']:.2f}")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(program.run(main))
