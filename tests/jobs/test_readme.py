"""The commands of README.md run as they stand there, on a tiny set."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests import in_process, smallest

pytestmark = pytest.mark.multiprocess

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
# Of a run that takes seconds; the last value of a flag counts.
SHORT = ("--train_batch_size=6", "--train_steps=3", "--warmup_steps=1")
SMALL = (smallest.FLAG, "--image_size=32", *SHORT)
# The same with a recipe whose phases have sizes of their own, which needs a ResNet for
# images of any size.
SMALL_PHASES = ("--model=resnet18", *SHORT)
TRAINING = ("resnet/resnet_main.py", "launch/supervise.py")
SMALL_STEPS = (smallest.FLAG, "--image_size=32", "--batch_size=2", "--steps=1")


def commands() -> list[list[str]]:
    """Returns the indented command lines of README.md, in words."""
    lines = re.findall(r"^    ((?:python|mpirun|make|source) .*)$", README, re.M)
    return [shlex.split(line) for line in lines]


def small_command(words: list[str], folder: Path, raw: Path) -> list[str]:
    """Returns the program and the arguments of a command, for a tiny run."""
    is_first_run = "512" not in words and "--" not in words
    names = {
        "RECORDS": f"{folder}/records",
        "MODEL": f"{folder}/{'model' if is_first_run else f'model{len(words)}'}",
        "RAW": str(raw),
        "plan.png": f"{folder}/plan.png",
    }
    for name, path in names.items():
        words = [word.replace(name, path) for word in words]
    if "|" in words:  # Into rsync, to another host.
        words = words[: words.index("|")]
    program = next(word for word in words if word.endswith(".py"))
    arguments = words[words.index(program) + 1 :]
    if program == "launch/place_shards.py":  # There is one record file.
        arguments = [word.replace("nodes=4", "nodes=1") for word in arguments]
    if program == "launch/supervise.py":  # There is one host.
        hosts = arguments.index("-hosts")
        arguments[hosts - 1 : hosts + 2] = ["2"]
    if program in TRAINING and not {"--list_recipes", "--explain"} & set(words):
        has_phases = "--recipe=imagenette_best" in arguments
        arguments = [word for word in arguments if "train_epochs" not in word]
        arguments += SMALL_PHASES if has_phases else SMALL
    if program == "eval/benchmark.py":
        arguments += SMALL_STEPS
    return [program, *arguments]


def test_the_commands_run(run_ranks, records, tmp_path):
    """Those that need no mpirun share this process."""
    programs = []
    for words in commands():
        if words[0] == "source":
            continue
        if words[0] == "make":
            assert f"\n{words[1]}:" in (REPOSITORY / "Makefile").read_text()
            continue
        program, *arguments = small_command(words, tmp_path, records.parent / "raw")
        if words[0] == "mpirun":
            job = run_ranks(2, program, *arguments)
        else:
            module = import_module(program.removesuffix(".py").replace("/", "."))
            job = in_process.run(module, *arguments)
        assert job.returncode == 0, f"{words}\n{job.stderr}"
        programs.append(program)
    assert programs[:3] == [
        "data_prep/imagenet_to_tfrecords.py",
        "resnet/resnet_main.py",
        "eval/resnet_eval.py",
    ]
    assert programs[-1] == "eval/benchmark.py"
    assert job.stdout.count("images/s, all ranks") == 1  # Only rank 0 prints.


def test_the_lines_of_python_about_metrics_run():
    page = (REPOSITORY / "docs" / "run_folder.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    snippet = snippet.replace("MODEL", "docs/curves/imagenette")
    run = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(run.stdout) == pytest.approx(0.7261, abs=1e-4)
