"""Writes docs/flags.md: every flag of the installed programs, as they declare them.

python docs/generate_flags.py
"""

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from resnet.base import cli

PAGE = pathlib.Path(__file__).with_name("flags.md")
# The installed programs; the flags of a training that the planner passes on are those
# of the training program.
PROGRAMS = (
    "resnet/resnet_main.py",
    "eval/resnet_eval.py",
    "eval/predict.py",
    "eval/export.py",
    "eval/report.py",
    "eval/learning_curve.py",
    "eval/benchmark.py",
    "data_prep/imagenet_to_tfrecords.py",
    "data_prep/digits.py",
    "launch/estimate.py",
    "launch/parameter_server_job.py",
    "launch/place_shards.py",
    "launch/plan.py",
    "launch/supervise.py",
)
INTRODUCTION = """# Flags

<!-- Written by docs/generate_flags.py (`make flags`). Do not edit by hand. -->

Every flag of the installed programs. `--helpfull` prints the same texts, also for the
programs that are run by their paths; `--help` prints those of the most used flags.
Flags have the form `--name=value` or `--name value`; a flag that is True or False also
has the forms `--name` and `--noname`. A short form is written like `-K 0.01`. "recipe"
as the default means the value of `--recipe`, rescaled where the recipe depends on the
batch size or the data set ([recipes.md](recipes.md)).
"""


def row(entry: cli.Entry) -> str:
    """Returns the line of the table about a flag."""
    default = entry.default
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    shown = f"`{default}`" if default not in (None, "") else entry.unset or "none"
    short = entry.declaration.short_flag
    name = f"`--{entry.flag}`{f', `-{short}`' if short else ''}"
    meaning = entry.meaning.replace("|", "\\|")
    return f"| {name} | {shown} | {meaning} |"


def section(path: str, without: set[str]) -> str:
    """Returns the section of a program: what it does, and a table of its flags."""
    program = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    summary = " ".join(str(program.__doc__).split("\n\n")[0].split())
    lines = [f"## {path}", "", summary, ""]
    lines += ["| Flag | Default | Meaning |", "|---|---|---|"]
    for entry in cli.entries(program.FLAGS):
        if not entry.declaration.hidden and entry.flag not in without:
            lines.append(row(entry))
    return "\n".join(lines)


def page() -> str:
    """Returns the text of docs/flags.md."""
    training = importlib.import_module("resnet.resnet_main")
    of_training = {entry.flag for entry in cli.entries(training.FLAGS)}
    folders = {"recipe", "data_dir", "model_dir"}
    sections = [
        section(path, of_training - folders if path == "launch/plan.py" else set())
        for path in PROGRAMS
    ]
    return "\n".join([INTRODUCTION, "\n\n".join(sections), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
