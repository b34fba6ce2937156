"""Writes docs/flags.md: every flag of the installed programs, as they declare them.

python docs/generate_flags.py
"""

import dataclasses
import importlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from resnet.base import cli, program, settings
from resnet.config.recipe import Recipe, RecipePhase

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
    "eval/verify.py",
    "eval/selftest.py",
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

The programs and all of their flags. The programs run from any folder, by their path or
by the name that an installation has; those in `eval/lab/` have no such name.
`--helpfull` prints the same texts; `--help` prints those of the most used flags.
Flags have the form `--name=value` or `--name value`; a flag that is True or False also
has the forms `--name` and `--noname`. A short form is written like `-K 0.01`. "recipe"
as the default means the value of `--recipe`, rescaled where the recipe depends on the
batch size or the data set ([recipes.md](recipes.md)).
"""
OF_RECIPES = """## Settings of recipe files

Settings that have no flag, for a [recipe file](recipes.md#your-own-recipe), which may
also have those that have one.
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


def module_name(path: str) -> str:
    """Returns the module of a program."""
    return path.removesuffix(".py").replace("/", ".")


def summary(path: str) -> str:
    """Returns the first sentence of a program's docstring."""
    text = str(importlib.import_module(module_name(path)).__doc__)
    return " ".join(text.split("\n\n")[0].split())


def programs() -> str:
    """Returns the table of the programs, with the names that setup.py gives them."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    scripts = re.findall(r'"([\w-]+) = resnet\.base\.program:(\w+)"', setup)
    names = {getattr(program, function).args[0]: name for name, function in scripts}
    lines = ["| Program | Installed name | What it does |", "|---|---|---|"]
    for path in PROGRAMS:
        anchor = re.sub(r"\W", "", path)
        name = names[module_name(path)]
        lines.append(f"| [`{path}`](#{anchor}) | `{name}` | {summary(path)} |")
    return "\n".join([*lines, ""])


def recipe_settings() -> str:
    """Returns the tables of the settings of a recipe and of a phase without a flag."""
    lines = [OF_RECIPES]
    for kind, title in ((Recipe, "a recipe"), (RecipePhase, "a phase")):
        lines += [f"| Setting of {title} | Default | Meaning |", "|---|---|---|"]
        declared = settings.declarations(kind)
        for field in dataclasses.fields(kind):
            declaration = declared.get(field.name)
            if declaration and declaration.flag is None and declaration.help:
                names = ", ".join(f"`{name}`" for name in declaration.names)
                meaning = declaration.help + (f" One of {names}." if names else "")
                lines.append(f"| `{field.name}` | `{field.default}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def section(path: str, without: set[str]) -> str:
    """Returns the section of a program: what it does, and a table of its flags."""
    flags = importlib.import_module(module_name(path)).FLAGS
    lines = [f"## {path}", "", summary(path), ""]
    lines += ["| Flag | Default | Meaning |", "|---|---|---|"]
    for entry in cli.entries(flags):
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
    sections = ["\n\n".join(sections), "", recipe_settings()]
    return "\n".join([INTRODUCTION, programs(), *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
