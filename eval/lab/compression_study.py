r"""Trains with several methods of compressing gradients, and compares them.

python eval/lab/compression_study.py --data_dir=RECORDS --recipe=digits \
    --output_dir=STUDY
python eval/lab/compression_study.py --data_dir=RECORDS --recipe=digits \
    --output_dir=STUDY --methods=topk:ratio=0.01,qsgd --seeds=0,1,2

It trains with each method, each way and with and without error feedback, once
per seed, and once per seed without compression. After each training it writes
STUDY/study.json, a table (STUDY/study.md) and a figure (STUDY/study.png). If it
is interrupted, the same command resumes it, also in the middle of a training;
so does one with more rows or seeds.
"""

import functools
import pathlib
import signal
import sys
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from eval import measuring
from eval.lab.studying import report, rows, training
from eval.lab.studying.results import Result, Run, StudyFile
from resnet import shared_flags
from resnet.base import atomic_files, errors
from resnet.base.errors import UserError
from resnet.config.compression import METHODS, CompressionSettings
from resnet.metrics import figure

FLAGS = flags.FLAGS

_REQUIRED = ("data_dir", "recipe", "output_dir")
# The flags that all trainings have in common, which the file of the study keeps.
_SHARED = ("data_dir", "recipe", "train_epochs", "num_ranks", "train_flags")


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since training
    defines flags of the same names.
    """
    define_string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    define_list = functools.partial(flags.DEFINE_list, flag_values=flag_values)
    define_string("recipe", None, "The recipe of all trainings.")
    define_string("output_dir", None, "The folder of the study.")
    define_list(
        "methods",
        ",".join(METHODS),
        "The methods, each with the parameters that aren't the default ones, such as"
        " topk:ratio=0.01:kept_values=bfloat16.",
    )
    define_list(
        "ways",
        "layerwise,entiremodel",
        "What is compressed as one vector, values of the training's --compress.",
    )
    flags.DEFINE_enum(
        "feedback",
        "both",
        rows.FEEDBACK,
        "Whether the trainings have error feedback. Methods that can't have it train"
        " without it.",
        flag_values=flag_values,
    )
    define_string(
        "rows",
        None,
        "A JSON file with a list of settings of compression, instead of --methods,"
        ' --ways and --feedback, such as [{}, {"compress": "layerwise", "method":'
        ' "topk", "ratio": 0.01}].',
    )
    define_list("seeds", "0", "The seeds, with each of which each row trains once.")
    flags.DEFINE_float(
        "train_epochs",
        None,
        "The length of the trainings in epochs; unset, it is the recipe's.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "num_ranks",
        1,
        "The number of ranks that mpirun starts; 1 trains without mpirun.",
        lower_bound=1,
        flag_values=flag_values,
    )
    define_string(
        "train_flags", "", "Further flags of the training program, as in a shell."
    )


def main() -> None:
    """Runs the trainings that aren't done yet, as the flags say."""
    for name in _REQUIRED:
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required.")
    seeds = [_seed(text) for text in FLAGS.seeds]
    further = measuring.split_flags(FLAGS.train_flags, "train_flags")
    studied = _rows()
    folder = pathlib.Path(FLAGS.output_dir)
    with errors.naming_failures(f"writing {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        shared = {name: FLAGS[name].value for name in _SHARED}
        study = StudyFile(folder / "study.json", shared)
        if study.runs:
            _write(study, folder)  # The table and the figure may be missing.
    for seed in seeds:  # So that each row has a result early.
        for row in list(studied):
            model_dir = folder / "runs" / rows.name(row) / f"seed-{seed}"
            result = study.find(row, seed)
            if result is None:
                try:
                    result = _train(row, seed, model_dir, further)
                except training.Refused as error:
                    _say(f"{rows.name(row)} is left out: {error}")
                    studied.remove(row)
                    continue
                with errors.naming_failures(f"writing {folder}"):
                    study.add(Run(row, seed, result))
                    _write(study, folder)
            training.remove_weights(model_dir)  # The study has the result now.
            _say(f"{rows.name(row)}, seed {seed}: {_summary(result)}")
    if not study.runs:
        raise UserError("the training program refuses each of the rows (see above).")
    print((folder / "study.md").read_text(), end="")


def _rows() -> list[CompressionSettings]:
    if FLAGS.rows:
        return rows.read(pathlib.Path(FLAGS.rows))
    found, left_out = rows.product(FLAGS.methods, FLAGS.ways, FLAGS.feedback)
    for name in left_out:
        _say(f"{name} is left out: the training program refuses it")
    return found


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--seeds must be whole numbers; got {text!r}.")
    return int(text)


def _train(
    row: CompressionSettings,
    seed: int,
    model_dir: pathlib.Path,
    further: Sequence[str],
) -> Result:
    given = [f"--data_dir={FLAGS.data_dir}", f"--recipe={FLAGS.recipe}"]
    given += [f"--seed={seed}", *rows.flags(row), *further]
    if FLAGS.train_epochs is not None:
        given.append(f"--train_epochs={FLAGS.train_epochs}")
    return training.train(given, model_dir, FLAGS.num_ranks)


def _write(study: StudyFile, folder: pathlib.Path) -> None:
    by_row = study.by_row()
    text = report.table(by_row)
    atomic_files.atomic_write_bytes(folder / "study.md", text.encode())
    title = f"recipe {FLAGS.recipe}, {FLAGS.num_ranks} rank(s)"
    if FLAGS.train_epochs is not None:
        title += f", {FLAGS.train_epochs:g} epochs"
    num_seeds = sorted({len(found) for found in by_row.values()})
    title += f", {' or '.join(map(str, num_seeds))} seed(s): median, worst and best"
    drawn = figure.study(
        [
            figure.StudyRow(
                method="" if row == rows.DENSE else rows.method(row),
                way=row.compress,
                has_feedback=row.error_feedback,
                top1_percents=report.top1_percent(kept),
                message_bytes=[result.message_bytes for result in kept],
                minutes=[result.seconds / 60 for result in kept],
            )
            for row, results in by_row.items()
            for kept in [[result for result in results if result.top1 is not None]]
        ],
        title,
    )
    figure.write(drawn, folder / "study.png", "--output_dir")


def _summary(result: Result) -> str:
    if result.top1 is None:
        return f"diverged after step {result.steps:,}"
    return (
        f"top-1 {result.top1:.2%}, {result.message_bytes:,.0f} bytes and"
        f" {result.seconds / result.steps:.3g} s a step"
    )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def run() -> None:
    """Runs the program and exits; SIGTERM stops it like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shared_flags.keep_only(("data_dir",))
    define_flags(FLAGS)
    try:
        errors.run(main)
    except KeyboardInterrupt:
        _say("interrupted; the same command resumes the study")
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    run()
