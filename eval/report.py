"""Writes one HTML page that tells the whole story of one or several runs.

python eval/report.py MODEL
python eval/report.py MODEL OTHER --out=both.html

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
from resnet.report import page
from resnet.report.folder import require_runs


@dataclass(frozen=True)
class ReportSettings:
    """Where the page goes."""

    out: str = setting(
        "",
        "The file to write the page to. By default report.html in the first folder.",
        unset="`RUN/report.html` of the first run",
    )


FLAGS: cli.Groups = (ReportSettings,)


def main(argv: Sequence[str]) -> int:
    """Writes the page of the runs that the arguments name."""
    line = cli.parse(argv, __doc__, FLAGS, takes_arguments=True)
    if not line.arguments:
        raise UserError("expected the folder of at least one run; got none.")
    paths = [pathlib.Path(folder) for folder in line.arguments]
    out = pathlib.Path(line.of(ReportSettings).out or paths[0] / "report.html")
    require_runs(paths)
    atomic_files.require_place(out, "--out")
    page.write(paths, out)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
