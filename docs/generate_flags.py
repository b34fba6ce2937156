"""Writes docs/flags.md: every flag of the installed programs, as they define them.

python docs/generate_flags.py

tests/unit/test_flag_docs.py compares the committed page with what this writes.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = pathlib.Path(__file__).with_name("flags.md")
FOLDERS = ("data_dir", "model_dir")  # Listed before the other flags.

# Imports each program in a process of its own, since two programs may define the same
# flag; they share the import of what defines none. Prints its flags as a line of JSON:
# by name, with the module, the default, the help text, the values of an enumeration,
# which absl also puts before the help text, and the letter of the short form.
LIST_FLAGS = """
import importlib, json, os, sys
from absl import flags
import resnet.config.recipes
for name in sys.argv[1:]:
    if not os.fork():
        break
    if os.wait()[1]:
        sys.exit(f"{name} has failed")
else:
    sys.exit()
program = importlib.import_module(name)
groups = getattr(program, "FLAGS", getattr(program, "TRAINING", None))
if isinstance(groups, tuple):
    from resnet.base import cli
    print(json.dumps({
        entry.flag: [
            "",
            list(entry.default) if isinstance(entry.default, tuple) else entry.default,
            entry.meaning,
            [],
            entry.declaration.short_flag,
            entry.unset,
        ]
        for entry in cli.entries(groups) if not entry.declaration.hidden
    }))
    sys.exit()
if hasattr(program, "define_flags"):
    program.define_flags(flags.FLAGS)
print(json.dumps({
    flag.name: [
        module,
        flag.default,
        flag.help.split(">: ", 1)[-1] if values else flag.help,
        values,
        flag.short_name or "",
    ]
    for module, of_module in flags.FLAGS.flags_by_module_dict().items()
    if not module.startswith("absl")
    for flag in of_module
    for values in [getattr(flag.parser, "enum_values", [])]
}))
"""


@dataclass(frozen=True, eq=False)
class Program:
    """A program and its entry on the page.

    Attributes:
        path: Path from the root of the project.
        summary: Description of what the program does.
        unset: Text of the column "Default" for each flag without a default value, by
            flag name.
        unset_training: That text for the flags of `train_flags` that `unset` lacks.
        shared: Flags of `shared_flags` that the program uses; None for all of them.
        passes_on_training_flags: Whether the flags of the first program are on its
            entry only.
    """

    path: str
    summary: str
    unset: dict[str, str]
    unset_training: str = ""
    shared: Sequence[str] | None = None
    passes_on_training_flags: bool = False

    @property
    def module(self) -> str:
        """Returns the name to import the program by."""
        return self.path.removesuffix(".py").replace("/", ".")


PROGRAMS = (
    Program(
        "resnet/resnet_main.py",
        "Trains a network, and evaluates it while and after it trains."
        ' "Recipe" as the default means the value of `--recipe`, rescaled where the'
        " recipe depends on the batch size or the data set ([recipes.md](recipes.md)).",
        {},
    ),
    Program(
        "eval/resnet_eval.py",
        "Evaluates checkpoints of a run on every validation image.",
        {},
    ),
    Program(
        "eval/predict.py",
        "Prints the most probable classes of images, with the network of a run. Its"
        " arguments are image files, folders of them, or `-` for a list on standard"
        " input ([run_folder.md](run_folder.md#predicting)).",
        {},
    ),
    Program(
        "eval/export.py",
        "Exports the network of a run, for use without this project"
        " ([export.md](export.md)).",
        {},
    ),
    Program(
        "eval/report.py",
        "Writes one HTML page of one or several runs, whose folders are its arguments"
        " ([report.md](report.md)).",
        {},
    ),
    Program(
        "eval/learning_curve.py",
        "Draws the learning curves of one run, or of several"
        " (`--model_dir=A,B`), into one figure.",
        {"model_dir": "required", "picture": "`MODEL/learning_curve.png`"},
        shared=("model_dir",),
    ),
    Program(
        "eval/benchmark.py",
        "Measures the speed of training or evaluation on this machine"
        " ([benchmark.md](benchmark.md)).",
        {},
    ),
    Program(
        "data_prep/imagenet_to_tfrecords.py",
        "Converts labelled images into records, and verifies records"
        " ([data.md](data.md)). Exactly one of `--raw_data_dir` and `--tfds_name` is"
        " required, except with `--verify`.",
        {},
    ),
    Program(
        "data_prep/digits.py",
        "Writes scikit-learn's handwritten digits as class folders of images, the data"
        " of `make demo`.",
        {},
    ),
    Program(
        "launch/estimate.py",
        "Estimates how long a training takes on 1 to 4,096 nodes"
        " ([estimating.md](estimating.md)).",
        {},
    ),
    Program(
        "launch/parameter_server_job.py",
        "Starts a training on workers and parameter servers ([async.md](async.md)).",
        {},
    ),
    Program(
        "launch/place_shards.py",
        "Lists which record files each node needs for `--shard_by=file`"
        " ([data.md](data.md#records-on-the-nodes-of-a-cluster)).",
        {},
    ),
    Program(
        "launch/plan.py",
        "Plans a job on a cluster, and prints its command or batch file"
        " ([planning.md](planning.md)). It also has the flags of a training"
        " (`resnet/resnet_main.py`), which change the plan and are passed on.",
        {},
        passes_on_training_flags=True,
    ),
    Program(
        "launch/supervise.py",
        "Restarts a failed training ([faults.md](faults.md#restarting-automatically)).",
        {},
    ),
)

INTRODUCTION = """# Flags

<!-- Written by docs/generate_flags.py (`make flags`). Do not edit by hand. -->

Every flag of the installed programs. `--helpfull` prints the same texts, also for the
programs that are run by their paths; `--help` prints those of the most used flags.
Flags have the form `--name=value` or `--name value`; a flag that is True or False also
has the forms `--name` and `--noname`. A short form is written like `-K 0.01`.
"""


@dataclass(frozen=True)
class Flag:
    """A flag of a program.

    Attributes:
        name: Name without the leading dashes.
        module: Name of the module that defines the flag.
        default: Default value, or None.
        help: Help text.
        values: Values of an enumeration; empty for other flags.
        short_name: Letter of the short form; empty for none.
        unset: What it means that a flag without a default isn't given.
    """

    name: str
    module: str
    default: Any
    help: str
    values: Sequence[str] = ()
    short_name: str = ""
    unset: str = ""

    @property
    def is_shared(self) -> bool:
        """Returns whether several programs have the flag."""
        return self.module.endswith(("shared_flags", "launch_flags"))


def flags_of(
    program: Program, defined: dict[str, Any], of_training: Collection[str]
) -> list[Flag]:
    """Returns the flags that a program uses, of those that it defines.

    Shared folders come first, then the program's own flags, then other shared flags.
    """
    found = [Flag(name, *fields) for name, fields in defined.items()]
    used = program.shared
    found = [
        flag
        for flag in found
        if not flag.is_shared or used is None or flag.name in used
    ]
    if program.passes_on_training_flags:
        listed = set(of_training) - set(FOLDERS)
        found = [flag for flag in found if flag.name not in listed]
    return sorted(
        found, key=lambda flag: flag.is_shared * (1 - 2 * (flag.name in FOLDERS))
    )


def default_text(program: Program, flag: Flag) -> str:
    """Returns the table's text for a default value.

    Raises:
        KeyError: If the flag has no default value and `Program.unset` has no text
            for it.
    """
    if flag.default not in (None, "", []):
        return f"`{flag.default}`"
    if flag.unset:
        return flag.unset
    if flag.name not in program.unset and flag.module.endswith("train_flags"):
        return program.unset_training
    return program.unset[flag.name]


def meaning(flag: Flag) -> str:
    """Returns the table's text for what a flag means."""
    text = " ".join(flag.help.split()).replace("|", "\\|")
    if flag.values:
        text += f" One of {', '.join(f'`{value}`' for value in flag.values)}."
    return text


def section(program: Program, flags: Sequence[Flag]) -> str:
    """Returns the page's section of a program: its summary and a table of its flags."""
    lines = [
        *(f"## {program.path}", "", program.summary, ""),
        *("| Flag | Default | Meaning |", "|---|---|---|"),
    ]
    for flag in flags:
        short_form = f", `-{flag.short_name}`" if flag.short_name else ""
        lines.append(
            f"| `--{flag.name}`{short_form} | {default_text(program, flag)} |"
            f" {meaning(flag)} |"
        )
    return "\n".join(lines)


def all_flags() -> dict[Program, list[Flag]]:
    """Returns the flags of each program."""
    run = subprocess.run(
        [sys.executable, "-c", LIST_FLAGS, *(one.module for one in PROGRAMS)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    defined = [json.loads(line) for line in run.stdout.splitlines()]
    return {
        program: flags_of(program, of_program, defined[0])
        for program, of_program in zip(PROGRAMS, defined, strict=True)
    }


def page(flags: dict[Program, list[Flag]]) -> str:
    """Returns the text of docs/flags.md."""
    sections = [section(program, of_program) for program, of_program in flags.items()]
    return "\n".join([INTRODUCTION, "\n\n".join(sections), ""])


if __name__ == "__main__":
    PAGE.write_text(page(all_flags()), encoding="utf-8")
    print(PAGE)
