"""The run that a model directory holds: its lock, and settings that continue it."""

import dataclasses
import pathlib
from collections.abc import Sequence

from absl import logging

from resnet.checkpoint import retention, step_dirs
from resnet.checkpoint.weight_formats import files as weight_files
from resnet.config.config import (
    CONFIG_FILE,
    Config,
    differences,
    load_config,
    refuse_other,
)
from resnet.runtime import leaving
from resnet.runtime.run_lock import Locked, RunLock
from resnet.watchdog import failure_file

# Where these are "auto", a measurement at the start of the run decides.
MEASURED_SETTINGS = ("precision", "exchange")


def take_lock(model_dir: pathlib.Path) -> RunLock:
    """Locks the folder until the process ends; returns the lock.

    It removes what a killed save has left there, or gives it its name back.

    Raises:
        UserError: If the folder can't be locked. If another job holds the lock,
            `failure.json` says so.
    """
    try:
        lock = RunLock(model_dir)
    except Locked as error:
        failure_file.write(model_dir, str(error), is_locked=True)
        raise
    leaving.register(lock.release)
    step_dirs.remove_leftovers(model_dir)
    return lock


def match_saved_run(meanings: Sequence[Config]) -> tuple[int, dict[str, str]]:
    """Returns the index of the saved run's settings in `meanings`, and its choices.

    The choices are its values of those `MEASURED_SETTINGS` that are "auto" now. A run
    without a checkpoint doesn't count: its files are overwritten. Without a saved run
    the index is 0.

    Args:
        meanings: The possible settings of the command: those of the present recipes,
            then those of earlier versions (`earlier.meanings`).

    Raises:
        UserError: If the folder holds a run with other settings, naming the
            differences; or if a new run has initial weights that don't exist.
    """
    config = meanings[0]
    model_dir = pathlib.Path(config.model_dir)
    if not step_dirs.saved_steps(model_dir):
        if config.initial_weights:
            weight_files.kind_of(pathlib.Path(config.initial_weights))
        return 0, {}
    old = retention.newest_settings(model_dir)
    if old is None and (model_dir / CONFIG_FILE).exists():
        old = load_config(config.model_dir)
    if old is None:
        return 0, {}
    measured = {
        name: getattr(old, name)
        for name in MEASURED_SETTINGS
        if getattr(config, name) == "auto"
    }
    candidates = [dataclasses.replace(meaning, **measured) for meaning in meanings]
    nearest = min(candidates, key=lambda new: len(differences(old, new)))
    refuse_other(old, nearest)
    if changed := differences(old, candidates[0]):
        logging.info(
            "%s has changed since this run was begun (%s); the run keeps the settings"
            " that it was begun with.",
            *(config.recipe, "; ".join(changed)),
        )
    return candidates.index(nearest), measured
