"""Writes one HTML page that tells the whole story of one or several runs.

python eval/report.py MODEL
python eval/report.py MODEL OTHER --out=both.html

The page needs no network and no other file. A folder may also be that of a
study (eval/lab/compression_study.py). Wrong images, confusions and calibration are
in it after eval/resnet_eval.py --store_predictions.
"""

import pathlib
import sys
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from resnet.base import errors
from resnet.base.errors import UserError
from resnet.report import page

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "out",
    None,
    "The file to write the page to. By default report.html in the first folder.",
)


def main(folders: Sequence[str]) -> None:
    """Writes the page of the runs that the arguments name."""
    if not folders:
        raise UserError("expected the folder of at least one run; got none.")
    paths = [pathlib.Path(folder) for folder in folders]
    out = pathlib.Path(FLAGS.out or paths[0] / "report.html")
    page.write(paths, out)
    print(out)


def run() -> None:
    """Runs the program and exits."""
    errors.run_with_arguments(main)


if __name__ == "__main__":
    run()
