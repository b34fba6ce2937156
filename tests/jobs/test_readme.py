"""The commands of README.md run as they stand there, on a tiny set."""

import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import smallest

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


def test_every_target_of_make_exists():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = [words[1] for words in commands() if words[0] == "make"]
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M)


@pytest.mark.timeout(900)  # A dozen programs.
def test_the_commands_run(run_ranks, records, tmp_path):
    raw = records.parent / "raw"
    jobs = []
    for words in commands():
        if words[0] in ("make", "source"):
            continue
        is_other_run = "512" in words or "--" in words
        model_dir = tmp_path / ("model" if not is_other_run else str(len(jobs)))
        words = [
            word.replace("RECORDS", str(tmp_path / "records"))
            .replace("MODEL", str(model_dir))
            .replace("RAW", str(raw))
            .replace("=plan.png", f"={tmp_path}/plan.png")
            for word in words
        ]
        if "|" in words:  # Into rsync, to another host.
            words = words[: words.index("|")]
        program = next(word for word in words if word.endswith(".py"))
        arguments = words[words.index(program) + 1 :]
        if program == "launch/place_shards.py":  # There is one record file.
            arguments = [word.replace("nodes=4", "nodes=1") for word in arguments]
        if program == "launch/supervise.py":  # There is one host.
            hosts = arguments.index("-hosts")
            arguments[hosts - 1 : hosts + 2] = ["2"]
        only_tells = {"--list_recipes", "--explain"} & set(words)
        if program in TRAINING and not only_tells:
            has_phases = "--recipe=imagenette_best" in arguments
            arguments = [word for word in arguments if "train_epochs" not in word]
            arguments += SMALL_PHASES if has_phases else SMALL
        if program == "eval/benchmark.py":
            arguments += SMALL_STEPS
        num_ranks = 2 if words[0] == "mpirun" else 1
        jobs.append((num_ranks, program, *arguments))
    programs = [job[1] for job in jobs]
    assert programs[:3] == [
        "data_prep/imagenet_to_tfrecords.py",
        "resnet/resnet_main.py",
        "eval/resnet_eval.py",
    ]
    assert programs[-1] == "eval/benchmark.py"
    # The first three need what those before them write. The others, which spend most of
    # their time on importing TensorFlow, need only that.
    done = [run_ranks(*job) for job in jobs[:3]]
    with ThreadPoolExecutor(2) as pool:
        done += pool.map(lambda job: run_ranks(*job), jobs[3:])
    for job in done:
        assert job.returncode == 0, job.stderr
    assert done[-1].stdout.count("images/s, all ranks") == 1  # Only rank 0 prints.


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
