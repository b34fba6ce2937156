"""Exports the network of a run when its training ends. Does not import TensorFlow."""

import os
import tempfile
import time
from pathlib import Path

from absl import logging

from resnet.base.errors import UserError
from resnet.base.names import require_lines
from resnet.checkpoint import step_dirs
from resnet.config.config import Config
from resnet.distributed.communicator import Communicator
from resnet.export import contents, formats
from resnet.watchdog import history

_EVENT = "export"  # Of the run's history.


def check(config: Config) -> None:
    """Creates the folder of the exports, if the run has one, or raises UserError."""
    if not config.export_dir:
        return
    require_lines(config.class_names)
    try:
        Path(config.export_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=config.export_dir).close()
    except OSError as error:
        raise UserError(
            f"--export_dir must be a folder that can be written to; {error.filename}:"
            f" {os.strerror(error.errno or 0)}. Choose another one."
        ) from error


def export(config: Config, communicator: Communicator) -> None:
    """Writes a SavedModel of the newest checkpoint on rank 0, if the run asks for it.

    Its folder in `export_dir` is named by the time in seconds, so that a server takes
    the newest. It has the EMA weights if the run has them. A checkpoint is not exported
    again if the run is started again at its last step. Raises AgreedError, on all
    ranks, if it can't be written. Imports TensorFlow.

    Source: tensorflow/tpu, models/official/resnet/resnet_main.py, main.
    """
    if not config.export_dir:
        return
    communicator.report_status("exporting the network", is_timed=False)
    with communicator.collective_errors():
        if communicator.rank == 0 and not is_exported(config):
            _export(config)


def is_exported(config: Config) -> bool:
    """Returns whether the newest checkpoint has been exported, by the run's history."""
    model_dir, export_dir = Path(config.model_dir), Path(config.export_dir)
    step = step_dirs.saved_steps(model_dir)[-1]
    for event in reversed(history.read(model_dir)[0]):
        if event["event"] == "start" and event.get("step") != step:
            return False  # Its steps were trained after any earlier export.
        if event["event"] == _EVENT and event.get("step") == step:
            path = Path(str(event.get("path")))
            if path.parent == export_dir.resolve() and path.exists():
                logging.info("Step %d is exported already, to %s", step, path)
                return True
    return False


def _export(config: Config) -> None:
    from resnet.checkpoint import restore

    folder = Path(config.export_dir, str(int(time.time())))
    trained = restore.load_network(config, Path(config.model_dir))
    described = contents.of_run(config, trained.step, trained.weights)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)  # TensorFlow logs each step of a save.
    try:
        formats.write("savedmodel", trained, described, folder)
    finally:
        logging.set_verbosity(verbosity)
    logging.info("Exported step %d to %s", trained.step, folder)
    event = {"step": trained.step, "path": str(folder.resolve())}
    history.append(Path(config.model_dir), _EVENT, **event)
