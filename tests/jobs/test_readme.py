"""The commands of README.md and the tutorial run as they stand there, on a tiny set."""

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests import in_process
from tests.processes import completed

pytestmark = pytest.mark.multiprocess

REPOSITORY = Path(__file__).resolve().parents[2]
# Of a run that takes seconds.
SMALL = ["--train_batch_size=6", "--train_steps=3", "--warmup_steps=1"]


def commands(page: str) -> list[list[str]]:
    """Returns the indented command lines of a page, in words."""
    text = (REPOSITORY / page).read_text()
    lines = re.findall(r"^    ((?:python|mpirun) .*)$", text, re.M)
    return [shlex.split(line) for line in lines]


def small_command(words: list[str], folder: Path, raw: Path) -> list[str]:
    """Returns the program and the arguments of a command, for a tiny run."""
    names = {
        "RECORDS": f"{folder}/records",
        "MODEL": f"{folder}/model",
        "RAW/parachute": str(raw),
        "RAW": str(raw),
    }
    for name, path in names.items():
        words = [word.replace(name, path) for word in words]
    if ">" in words:
        words = words[: words.index(">")]
    program = next(word for word in words if word.endswith(".py"))
    arguments = words[words.index(program) + 1 :]
    if program == "resnet/resnet_main.py" and "--explain" not in words:
        arguments = [word for word in arguments if "train_epochs" not in word]
        arguments += SMALL
    return [program, *arguments]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_commands_run(page, run_ranks, records, tmp_path):
    """Those that need no mpirun share this process."""
    raw, programs = records.parent / "raw" / "train", []
    for words in commands(page):
        program, *arguments = small_command(words, tmp_path, raw)
        if words[0] == "mpirun":
            job = run_ranks(2, program, *arguments)
        else:
            module = import_module(program.removesuffix(".py").replace("/", "."))
            job = in_process.run(module, *arguments)
        assert job.returncode == 0, f"{words}\n{job.stderr}"
        programs.append(program)
    assert {
        "data_prep/imagenet_to_tfrecords.py",
        "resnet/resnet_main.py",
        "eval/report.py",
        "eval/predict.py",
    } < set(programs)


def test_the_lines_of_python_about_metrics_run():
    page = (REPOSITORY / "docs" / "run_folder.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    snippet = snippet.replace("MODEL", "docs/curves/imagenette")
    run = completed([sys.executable, "-c", snippet], cwd=REPOSITORY, check=True)
    assert float(run.stdout) == pytest.approx(0.7261, abs=1e-4)
