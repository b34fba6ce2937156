"""Draws the learning curves of one or several training runs.

python eval/learning_curve.py --model_dir=MODEL
python eval/learning_curve.py --model_dir=MODEL,OTHER --picture=both.png
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from resnet.base import cli, errors
from resnet.base.errors import UserError
from resnet.base.settings import setting
from resnet.config.config import Config, load_config, such_as_runs_near
from resnet.metrics import figure
from resnet.metrics.figure import LoggedRun
from resnet.metrics.jsonl import FILE as METRICS_FILE
from resnet.metrics.jsonl import Line, read
from resnet.report.folder import folders_of, names_of


@dataclass(frozen=True)
class CurveSettings:
    """Where the figure goes."""

    picture: str = setting(
        "",
        "File to write the figure to. By default learning_curve.png in the first"
        " folder.",
        unset="`MODEL/learning_curve.png`",
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("model_dir",), common=True),
    cli.Flags(CurveSettings, common=True),
)


def main(argv: Sequence[str]) -> int:
    """Draws the runs that the flags name."""
    line = cli.parse(argv, __doc__, FLAGS)
    model_dir = line.values["model_dir"]
    if not model_dir:
        raise UserError("--model_dir is required and must name a folder.")
    folders = folders_of(model_dir)
    picture = line.of(CurveSettings).picture or folders[0] / "learning_curve.png"
    runs = load(folders)
    figure.write(figure.learning_curves(runs), pathlib.Path(picture), "--picture")
    print(picture)
    return 0


def load(folders: Sequence[pathlib.Path]) -> list[LoggedRun]:
    """Returns the runs in folders, named by recipes or, if these repeat, by folders."""
    lines = list(map(_read_lines, folders))
    configs = [load_config(str(folder)) for folder in folders]
    names = [config.recipe for config in configs]
    if len(set(names)) < len(names):
        names = names_of(folders)
    return list(map(LoggedRun, names, configs, lines))


def _read_lines(folder: pathlib.Path) -> list[Line]:
    metrics = folder / METRICS_FILE
    with errors.naming_failures(f"reading {metrics}"):
        lines = read(metrics) if metrics.exists() else []
    if not any(line["kind"] == "train" for line in lines):
        raise UserError(
            f"expected training metrics in {metrics}; there are none yet. Wait for the"
            f" first log line, or name another --model_dir{such_as_runs_near(folder)}."
        )
    return lines


if __name__ == "__main__":
    sys.exit(program.run(main))
