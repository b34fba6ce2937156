"""The folder of a run, `model_dir`: its lock, and the run that it holds already."""

import contextlib
import dataclasses
import itertools
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from absl import logging

from resnet.base import errors
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, retention, step_dirs
from resnet.checkpoint.weight_formats import files as weight_files
from resnet.config.config import (
    BEST_METRICS,
    CONFIG_FILE,
    Config,
    load_config,
    refuse_other,
)
from resnet.evaluation import prediction_file
from resnet.metrics import jsonl
from resnet.runtime import program
from resnet.runtime.run_lock import Locked, RunLock
from resnet.watchdog import history

# Where these are "auto", a measurement at the start of the run decides.
MEASURED_SETTINGS = ("precision", "exchange")
_LONGEST_NAME = 150  # At least that of any file of a run, from its folder.


def prepare(config: Config) -> tuple[RunLock, dict[str, str]]:
    """Creates and locks the folder of a run that starts or resumes; on rank 0.

    Returns the lock, and what `match_saved_run` returns.
    """
    model_dir = Path(config.model_dir)
    make(config.model_dir)
    lock = take_lock(model_dir)
    history.remove_failure(model_dir)
    measured = match_saved_run(config)
    set_aside_unsaved(model_dir)
    return lock, measured


def make(model_dir: str) -> None:
    """Creates the folder if it doesn't exist, and tries to write to it.

    Raises:
        UserError: If the folder, or its folder of checkpoints, is not writable, or if
            its name is not valid UTF-8, which TensorFlow requires.
    """
    try:
        model_dir.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"--model_dir must be a name in UTF-8; got {os.fsencode(model_dir)!r}."
            " Rename the folder."
        ) from error
    if not Path(model_dir, CONFIG_FILE).exists():
        with contextlib.suppress(OSError):
            if image := next(Path(model_dir).glob("*/*.[jJ][pP]*[gG]"), None):
                raise UserError(
                    f"--model_dir must be a folder of a run; it has images, such as"
                    f" {image}. Choose a new folder."
                )
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(Path(model_dir, "n" * _LONGEST_NAME))
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=model_dir).close()
    except OSError as error:
        error.filename = model_dir  # Not the name in it that was tried.
        raise not_writable(error) from error
    folder = Path(model_dir, step_dirs.FOLDER)
    try:
        if os.path.lexists(folder):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"{folder}, in which the checkpoints are saved, must be a folder that can"
            f" be written to: {os.strerror(error.errno or 0)}. Move it away, or choose"
            " another --model_dir."
        ) from error


def not_writable(error: OSError) -> UserError:
    """Returns the error for a folder that can't be written to."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return UserError(
            f"--model_dir must be a folder; {error.filename} is a file, or lies in one."
        )
    return UserError(
        f"--model_dir must be a folder that can be written to; {error.filename}:"
        f" {os.strerror(error.errno or 0)}. Choose another one."
    )


def take_lock(model_dir: Path) -> RunLock:
    """Locks the folder until the process ends, and tidies it up; returns the lock.

    Raises:
        UserError: If it can't be locked. If another job has, `failure.json` says so.
    """
    try:
        lock = RunLock(model_dir)
    except Locked as error:
        history.write_failure(model_dir, str(error), is_locked=True)
        raise
    program.at_exit(lock.release)
    step_dirs.remove_leftovers(model_dir)
    return lock


def match_saved_run(config: Config) -> dict[str, str]:
    """Returns what a run with a checkpoint chose where `MEASURED_SETTINGS` are "auto".

    Also returns the digest of its initial weights, without a checkpoint that of today.

    Raises:
        UserError: If the folder holds a run with other settings, naming the
            differences; or if a new run has initial weights that don't exist, or have
            changed since a start that has saved nothing.
    """
    model_dir = Path(config.model_dir)
    if not step_dirs.saved_steps(model_dir):
        return _digest_of_weights(config) if config.initial_weights else {}
    old = retention.newest_settings(model_dir)
    if old is None and (model_dir / CONFIG_FILE).exists():
        old = load_config(config.model_dir)
    if old is None:
        return {}
    unsettled = [name for name in MEASURED_SETTINGS if getattr(config, name) == "auto"]
    names = (*unsettled, "initial_weights_sha256")
    measured = {name: getattr(old, name) for name in names}
    try:
        refuse_other(old, dataclasses.replace(config, **measured))
    except UserError as error:
        if config.train_steps <= old.train_steps:
            raise
        raise UserError(f"{error} {_how_to_train_longer(model_dir)}") from error
    if old.validation_records_sha256 != config.validation_records_sha256:
        logging.warning(
            "the validation images are other ones than at the last start: accuracies"
            " from now on can't be compared with those before"
        )
    return measured


def describe_end(config: Config, is_evaluated: bool) -> str:
    """Returns what a run that has nothing left to do has reached; empty for others.

    The newest checkpoint must be intact, that of the end, and evaluated if the run is.
    """
    model_dir = Path(config.model_dir)
    steps = step_dirs.saved_steps(model_dir)
    if not steps:
        return ""
    step, metric = steps[-1], config.best_metric
    try:
        if not retention.ends_run(model_dir, step, config.train_steps, config):
            return ""
        folder = step_dirs.of_step(model_dir, step)
        metadata = integrity.verify(folder, lambda name: True)
        value = retention.final_value(metadata, metric)
    except UserError:
        return ""  # What restores it says why.
    if is_evaluated and value is None:
        return ""
    result = ""
    if value is not None:
        result = f", with a {BEST_METRICS[metric]} of {100 * value:.2f} %"
    return (
        f"The run in {model_dir} is complete: it has trained {step:,} steps"
        f" ({config.epoch(step):.2f} epochs){result}."
        f" {_how_to_train_longer(model_dir)}"
    )


def _how_to_train_longer(model_dir: Path) -> str:
    return (
        "To train longer, begin another run with its weights:"
        f" --initial_weights={shlex.quote(str(model_dir))} and another --model_dir."
    )


def _digest_of_weights(config: Config) -> dict[str, str]:
    """Returns the digest of the initial weights of a run that has saved nothing."""
    digest, before = weight_files.sha256(Path(config.initial_weights)), ""
    with contextlib.suppress(UserError):  # Without settings, nothing has started.
        old = load_config(config.model_dir)
        if old.initial_weights == config.initial_weights:
            before = old.initial_weights_sha256
    if before not in ("", digest):
        raise UserError(
            f"{config.initial_weights} must hold the weights that the run in"
            f" {config.model_dir} has started with, which has saved no checkpoint yet;"
            f" their SHA-256 was {before:.12}, now it is {digest:.12}. Put them back,"
            " or name another --model_dir."
        )
    return {"initial_weights_sha256": digest}


def set_aside_unsaved(model_dir: Path) -> None:
    """Moves what a run without a checkpoint has logged to a folder `unsaved-N`.

    Otherwise a start at step 0 would overwrite it. The run's history stays.

    Raises:
        UserError: If the run had ended, so that its checkpoints must have been removed.
    """
    metrics = model_dir / jsonl.FILE
    has_metrics = metrics.is_file() and metrics.stat().st_size > 0
    if not has_metrics or step_dirs.saved_steps(model_dir):
        return
    for event in history.read(model_dir)[0]:
        if event["event"] == "end" and event.get("step"):
            raise UserError(
                f"{model_dir} must have the checkpoints of its run, which has ended"
                f" after step {event['step']}; there are none. Put them back to resume"
                " the run, or choose another --model_dir for a new one."
            )
    with errors.naming_failures(f"moving the metrics of {model_dir}"):
        names = (model_dir / f"unsaved-{number}" for number in itertools.count(1))
        folder = next(name for name in names if not name.exists())
        folder.mkdir()
        if (model_dir / CONFIG_FILE).exists():
            shutil.copy2(model_dir / CONFIG_FILE, folder)
        for name in (prediction_file.FOLDER, jsonl.FILE):
            if (model_dir / name).exists():
                (model_dir / name).rename(folder / name)
    logging.warning(
        "%s has no checkpoint, so the training starts at step 0. What an earlier start"
        " has logged is in %s now.",
        model_dir,
        folder,
    )
