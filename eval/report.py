"""Writes one HTML page that tells the whole story of one or several runs.

python eval/report.py --model_dir=MODEL
python eval/report.py --model_dir=MODEL,OTHER --out=both.html
python eval/report.py runs/*

The page needs no network and no other file. A folder may also be that of a
study (eval/lab/compression_study.py). Wrong images, confusions and calibration
are in it after eval/resnet_eval.py --store_predictions.
"""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from resnet.base import atomic_files, cli
from resnet.base.errors import UserError
from resnet.base.settings import setting
from resnet.config.config import Config
from resnet.report import page
from resnet.report.folder import folders_of, require_runs


@dataclass(frozen=True)
class ReportSettings:
    """Where the page goes."""

    out: str = setting(
        "",
        "The file to write the page to. By default report.html in the first folder.",
        unset="`MODEL/report.html` of the first folder",
    )


FLAGS: cli.Groups = (cli.Flags(Config, names=("model_dir",)), ReportSettings)


def main(argv: Sequence[str]) -> int:
    """Writes the page of the runs that --model_dir and the arguments name."""
    line = cli.parse(argv, __doc__, FLAGS, takes_arguments=True)
    paths = folders_of(line.values["model_dir"])
    paths += [pathlib.Path(folder) for folder in line.arguments]
    if not paths:
        raise UserError("--model_dir is required and must name a folder.")
    out = pathlib.Path(line.of(ReportSettings).out or paths[0] / "report.html")
    require_runs(paths)
    atomic_files.require_place(out, "--out")
    page.write(paths, out)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
