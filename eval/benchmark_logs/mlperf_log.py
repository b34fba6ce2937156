r"""Writes a run's log in the form of MLPerf Training, for its compliance checker.

python eval/benchmark_logs/mlperf_log.py --model_dir=MODEL \
    --submission_org=ORGANIZATION --submission_platform=MACHINES
python eval/benchmark_logs/mlperf_log.py --model_dir=MODEL --cleared_caches \
    --submission_org=ORGANIZATION --submission_platform=MACHINES

The log is that of the benchmark resnet, which the rules have up to version 4.0.
Its times are those that the run has recorded, from the start of its first
process to the evaluation that reached --target_top1.
"""

import io
import logging
import pathlib
import sys
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from eval.benchmark_logs import mlperf_events
from eval.benchmark_logs.mlperf_events import Event, Submission
from resnet import shared_flags
from resnet.base import atomic_files, errors
from resnet.base.errors import UserError
from resnet.config.config import load_config
from resnet.metrics import jsonl
from resnet.watchdog import history

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "mlperf_file", None, "File to write. By default result_0.txt in the run's folder."
)
flags.DEFINE_string("submission_org", None, "The organization that submits.")
flags.DEFINE_string("submission_platform", None, "The name of the machines.")
flags.DEFINE_enum(
    "submission_division", "open", ("closed", "open"), "The division of MLPerf."
)
flags.DEFINE_enum(
    "submission_status",
    "research",
    ("cloud", "onprem", "preview", "research"),
    "The availability of the machines, in MLPerf's terms.",
)
flags.DEFINE_bool(
    "cleared_caches",
    False,
    "State that the page caches of all hosts were cleared before the run.",
)
flags.DEFINE_float(
    "target_top1",
    0.759,
    "The validation top-1 accuracy, from 0 to 1, at which the run is a success;"
    " by default that of MLPerf.",
    lower_bound=0,
    upper_bound=1,
)


def main() -> None:
    """Writes the log of the run that the flags name."""
    for name in ("model_dir", "submission_org", "submission_platform"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required and must not be empty.")
    folder = pathlib.Path(FLAGS.model_dir)
    config = load_config(str(folder))
    metrics = folder / jsonl.FILE
    with errors.naming_failures(f"reading {metrics}"):
        lines = jsonl.read(metrics) if metrics.exists() else []
    found = mlperf_events.of_run(
        config,
        lines,
        history.read(folder)[0],
        Submission(
            FLAGS.submission_org,
            FLAGS.submission_platform,
            FLAGS.submission_division,
            FLAGS.submission_status,
            FLAGS.cleared_caches,
        ),
        FLAGS.target_top1,
    )
    path = pathlib.Path(FLAGS.mlperf_file or folder / "result_0.txt")
    text = encode(found)
    with errors.naming_failures(f"writing {path}"):
        atomic_files.atomic_write_bytes(path, text.encode())
    print(path)


def encode(found: Sequence[Event]) -> str:
    """Returns the lines of events, as MLPerf's own logger writes them.

    Raises:
        UserError: If the package of this logger is not installed.
    """
    try:
        from mlperf_logging.mllog import mllog
    except ImportError as error:
        raise UserError(
            "the package mlperf-logging must be installed; it is not. Run pip install"
            " 'mlperf-logging', or install this project's extra mlperf."
        ) from error
    text = io.StringIO()
    logger = logging.Logger("mlperf", logging.INFO)
    logger.addHandler(logging.StreamHandler(text))
    root = pathlib.Path(__file__).resolve().parents[2]
    writer = mllog.MLLogger(logger, root_dir=str(root))
    write = {"start": writer.start, "end": writer.end, "point": writer.event}
    for event in found:
        write[event.kind](
            event.key,
            event.value,
            metadata=event.metadata,
            time_ms=round(1000 * event.time),
        )
    return text.getvalue()


def run() -> None:
    """Runs the program."""
    shared_flags.keep_only(("model_dir",))
    errors.run(main)


if __name__ == "__main__":
    run()
