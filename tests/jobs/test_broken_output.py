"""A program does its work whatever becomes of its standard output and error."""

import os
import pty
import subprocess
import sys

import pytest

from resnet.checkpoint.step_dirs import saved_steps
from tests import main_run
from tests.jobs.conftest import REPOSITORY, TIMEOUT_SECONDS


def start(redirection: str, program: str, *arguments: str, output=subprocess.DEVNULL):
    """Starts a program whose output a shell redirects; the code is the program's."""
    return subprocess.Popen(
        [
            *("bash", "-o", "pipefail", "-c", f'"$@" {redirection}', ""),
            *(sys.executable, str(REPOSITORY / program), *arguments),
        ],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    "redirection", ["> /dev/full 2>&1", "<&- >&- 2>&-", "2>&1 | head -1", "lost"]
)
def test_a_training_does_not_depend_on_its_output(records, tmp_path, redirection):
    model_dir = tmp_path / "model"
    folders = (f"--data_dir={records}", f"--model_dir={model_dir}")
    training = ("resnet/resnet_main.py", *main_run.TRAINING_FLAGS, *folders)
    if redirection == "lost":  # A terminal that sends no SIGHUP, as after `disown`.
        keyboard, screen = pty.openpty()
        process = start("", *training, output=screen)
        os.close(screen)
        os.read(keyboard, 1)
        os.close(keyboard)
    else:
        process = start(redirection, *training)
    assert process.wait(TIMEOUT_SECONDS) == 0
    steps = [line["step"] for line in main_run.read_metrics(model_dir)]
    assert (steps, saved_steps(model_dir)) == ([2, 4, 6], [3, 6])
    assert {path.name for path in model_dir.iterdir()} == {
        *("checkpoints", "config.json", "history.jsonl", "metrics.jsonl"),
        "tensorboard",
    }


def test_the_supervisor_restarts_if_its_log_cannot_be_written(tmp_path):
    flags = ("--max_restarts=2", "--restart_seconds=0", f"--model_dir={tmp_path}")
    command = ("--", "sh", "-c", f"echo >> {tmp_path}/starts; exit 9")
    process = start("2> /dev/full", "launch/supervise.py", *flags, *command)
    assert process.wait(TIMEOUT_SECONDS) == 9
    assert (tmp_path / "starts").read_text() == 2 * "\n"
