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

import pathlib
import shutil
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from resnet.base import program  # Before imports that may fail.

# isort: split

from eval.benchmarking import jobs
from eval.lab import study, study_figure, trainings
from eval.lab.study import DENSE, Result, Run, StudyFile
from resnet.base import atomic_files, cli, errors
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.config import Config
from resnet.metrics import figure, jsonl


@dataclass(frozen=True)
class StudySettings:
    """What is trained; the settings up to `train_flags` are of all trainings."""

    data_dir: str = ""
    recipe: str = setting("", "The recipe of all trainings.")
    train_epochs: float | None = setting(
        None, "The length of the trainings in epochs; unset, it is the recipe's."
    )
    num_ranks: int = setting(
        1,
        "The number of ranks that mpirun starts; 1 trains without mpirun.",
        bounds=COUNT,
    )
    train_flags: str = setting(
        "", "Further flags of the training program, as in a shell."
    )
    output_dir: str = setting("", "The folder of the study.")
    methods: tuple[str, ...] = setting(
        tuple(METHODS),
        "The methods, each with the parameters that aren't the default ones, such as"
        " topk:ratio=0.01:kept_values=bfloat16.",
    )
    ways: tuple[str, ...] = setting(
        ("layerwise", "entiremodel"),
        "What is compressed as one vector, values of the training's --compress.",
    )
    feedback: str = setting(
        "both",
        "Whether the trainings have error feedback, one of {names}. Methods that can't"
        " have it train without it.",
        names=tuple(study.FEEDBACK),
    )
    rows: str = setting(
        "",
        "A JSON file with a list of settings of compression, instead of --methods,"
        " --ways and --feedback: an empty object trains without compression, and one"
        " with compress, method and ratio is such a row.",
    )
    seeds: tuple[int, ...] = setting(
        (0,), "The seeds, with each of which each row trains once."
    )


FLAGS: cli.Groups = (
    cli.Flags(Config, names=("data_dir",)),
    cli.Flags(StudySettings, common=True),
)
# The settings that all trainings have in common, which the file of the study keeps.
_SHARED = ("data_dir", "recipe", "train_epochs", "num_ranks", "train_flags")
_HEADER = (
    "| method | compress | error feedback | top-1 in %: median (min to max) | n |"
    " message bytes per step | dense / message | bytes sent per step |"
    " compression error | exchange share | seconds per step | minutes of training |\n"
)

Results = Mapping[CompressionSettings, Sequence[Result]]


class Refused(UserError):
    """The training program refuses its settings, before the first step."""


def main(argv: Sequence[str]) -> int:
    """Runs the trainings that aren't done yet; SIGTERM stops it like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_study(argv)
    except KeyboardInterrupt:
        _say("interrupted; the same command resumes the study")
        return 128 + signal.SIGINT
    return 0


def run_study(argv: Sequence[str]) -> None:
    """Runs the trainings that aren't done yet, as the flags say."""
    settings = cli.parse(argv, __doc__, FLAGS).of(StudySettings)
    for name in ("data_dir", "recipe", "output_dir"):
        if not getattr(settings, name):
            raise UserError(f"--{name} is required.")
    train_flags = trainings.split_flags(settings.train_flags, "train_flags")
    rows = _rows(settings)
    folder = pathlib.Path(settings.output_dir)
    with errors.naming_failures(f"writing {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        shared = {name: getattr(settings, name) for name in _SHARED}
        file = StudyFile(folder / "study.json", shared)
        if file.runs:
            write(file, settings)  # The table and the figure may be missing.
    for seed in settings.seeds:  # So that each row has a result early.
        for row in list(rows):
            model_dir = folder / "runs" / study.name(row) / f"seed-{seed}"
            result = file.find(row, seed)
            if result is None:
                flags = [
                    f"--data_dir={settings.data_dir}",
                    f"--recipe={settings.recipe}",
                    f"--seed={seed}",
                    *study.flags(row),
                ]
                if settings.train_epochs is not None:
                    flags.append(f"--train_epochs={settings.train_epochs}")
                flags += train_flags
                try:
                    result = train(flags, model_dir, settings.num_ranks)
                except Refused as error:
                    _say(f"{study.name(row)} is left out: {error}")
                    rows.remove(row)
                    continue
                with errors.naming_failures(f"writing {folder}"):
                    file.add(Run(row, seed, result))
                    write(file, settings)
            for name in ("checkpoints", "tensorboard"):  # The study has the result.
                shutil.rmtree(model_dir / name, ignore_errors=True)
            _say(f"{study.name(row)}, seed {seed}: {_summary(result)}")
    if not file.runs:
        raise UserError("the training program refuses each of the rows (see above).")
    print((folder / "study.md").read_text(), end="")


def _rows(settings: StudySettings) -> list[CompressionSettings]:
    if settings.rows:
        return study.read_rows(pathlib.Path(settings.rows))
    rows, left_out = study.product(settings.methods, settings.ways, settings.feedback)
    for name in left_out:
        _say(f"{name} is left out: the training program refuses it")
    return rows


def train(flags: Sequence[str], model_dir: pathlib.Path, num_ranks: int) -> Result:
    """Trains to the end, from the newest checkpoint if there is one.

    What the program prints is appended to `<model_dir>.log`. Raises Refused if the
    program refuses the settings, and UserError if the training fails otherwise, except
    by a loss that is not finite. The training saves if this program is interrupted.
    """
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    command = jobs.command(
        trainings.PROGRAM,
        [*flags, f"--model_dir={model_dir}"],
        num_ranks if num_ranks > 1 else 0,
    )
    log_path = pathlib.Path(f"{model_dir}.log")
    with log_path.open("ab") as output:
        training = trainings.start(command, output)
        try:
            code = training.wait()
        except KeyboardInterrupt:
            training.send_signal(signal.SIGTERM)
            training.wait()
            raise
    has_diverged = bool(code) and any(model_dir.glob("diverged-step-*.json"))
    if code and not has_diverged:
        printed = log_path.read_text(errors="replace").split("\n")
        reason = next(filter(None, map(str.strip, reversed(printed))), "no output")
        if code == errors.EXIT_CODE and not (model_dir / jsonl.FILE).exists():
            raise Refused(reason)
        raise UserError(
            f"the training in {model_dir} failed with exit code {code}, and {log_path}"
            f" ends with {reason!r}. The same command resumes the study."
        )
    return study.result_of(model_dir, has_diverged)


def write(file: StudyFile, settings: StudySettings) -> None:
    """Writes the table and the figure of a study."""
    folder, by_row = pathlib.Path(settings.output_dir), file.by_row()
    atomic_files.atomic_write_bytes(folder / "study.md", table(by_row).encode())
    title = f"recipe {settings.recipe}, ranks {settings.num_ranks}"
    if settings.train_epochs is not None:
        title += f", {settings.train_epochs:g} epochs"
    num_seeds = sorted({len(results) for results in by_row.values()})
    title += f", seeds {' or '.join(map(str, num_seeds))}: median, worst and best"
    points = []
    for row, results in by_row.items():
        trained = [result for result in results if result.top1 is not None]
        points.append(
            study_figure.StudyRow(
                method="" if row == DENSE else study.method(row),
                way=row.compress,
                has_feedback=row.error_feedback,
                top1_percents=top1_percents(trained),
                message_bytes=[result.message_bytes for result in trained],
                minutes=[result.seconds / 60 for result in trained],
            )
        )
    figure.write(study_figure.draw(points, title), folder / "study.png", "--output_dir")


def table(results: Results) -> str:
    """Returns a Markdown table of each row, numbers are medians over its seeds.

    Trainings that diverged before their first measurement count as diverged only.
    """
    dense = results.get(DENSE, ())
    lines = [_HEADER, f"|{(_HEADER.count('|') - 1) * ' --- |'}\n"]
    for row, of_row in results.items():
        lines.append(f"| {' | '.join(_cells(row, of_row, dense))} |\n")
    return "".join(lines)


def top1_percents(results: Sequence[Result]) -> list[float]:
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
    dense_bytes = [result.message_bytes for result in dense if result.steps]
    if dense_bytes and message_bytes:
        ratio = f"{statistics.median(dense_bytes) / message_bytes:,.1f}"
    compression_errors = [
        result.compression_error for result in results if result.compression_error
    ]
    seconds = [result.seconds / result.steps for result in results if result.steps]
    feedback = "yes" if row.error_feedback else "no"
    if row.compress == "none":
        feedback = "-"
    elif METHODS[row.method].has_momentum:
        feedback = "built in"
    return [
        study.method(row),
        "-" if row.compress == "none" else row.compress,
        feedback,
        _accuracy(results),
        str(len(results)),
        f"{message_bytes:,.0f}",
        ratio,
        f"{median('bytes_sent'):,.0f}",
        f"{statistics.median(compression_errors):.3g}" if compression_errors else "-",
        f"{median('exchange_share'):.1%}".replace("%", " %"),
        f"{statistics.median(seconds):.3g}" if seconds else "-",
        f"{median('seconds') / 60:.1f}",
    ]


def _accuracy(results: Sequence[Result]) -> str:
    percents = top1_percents(results)
    num_diverged = len(results) - len(percents)
    diverged = f"{num_diverged} diverged" if num_diverged else ""
    if not percents:
        return diverged
    text = f"{statistics.median(percents):.2f}"
    if len(percents) > 1:
        text += f" ({min(percents):.2f} to {max(percents):.2f})"
    return f"{text}, {diverged}" if diverged else text


def _summary(result: Result) -> str:
    if result.top1 is None:
        return f"diverged after step {result.steps:,}"
    return (
        f"top-1 {result.top1:.2%}, {result.message_bytes:,.0f} bytes and"
        f" {result.seconds / result.steps:.3g} s a step"
    )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(program.run(main))
