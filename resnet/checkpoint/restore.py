"""Restores a run from a checkpoint, or starts it; or loads the network of a run."""

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import keras
from absl import logging

from resnet.base import json_file
from resnet.base.errors import naming_failures
from resnet.base.text import counted
from resnet.checkpoint import integrity, step_dirs, tensors
from resnet.checkpoint.retention import best_value
from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint, assign
from resnet.checkpoint.weight_formats import initial
from resnet.config import phases
from resnet.config.config import Config, refuse_other
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.optim import muon
from resnet.optim.train_state import TrainState, assign_flat, build_model
from resnet.runtime import versions

# The first part of the names of a network's variables in a checkpoint.
_PREFIXES = {"raw": "model/", "ema": "ema/"}


def restore_newest(
    state: TrainState,
    model_dir: Path,
    communicator: Communicator,
    initialize: Callable[[], None] | None = None,
) -> None:
    """Restores the newest intact checkpoint, or starts a new run; on all ranks.

    Rank 0 reads the checkpoint, or initializes a new run, and broadcasts the variables.
    If the number of ranks is still that of the checkpoint, each rank gets its own
    BatchNorm averages back and reads its own `own_variables`. Otherwise all ranks get
    the mean of the averages, and of the weights in a round of local SGD, the state of
    the optimizer of one of the ranks that saved it, and no residuals.

    The function `initialize` sets weights of a new network which depend on the training
    images, on rank 0, before any initial weights are loaded. Raises AgreedError, on all
    ranks, if there are checkpoints but none can be restored, or if ranks with
    `rank_variables` don't all see the folder.
    """
    if state.rank_variables:
        check_is_shared(model_dir, communicator)
    is_resumed, rank_averages = False, None
    saved = _load_newest(state, model_dir, communicator)
    with communicator.collective_errors():
        if communicator.rank == 0:
            is_resumed = saved is not None
            if saved is None:
                _start(state, initialize)
            else:
                _check_is_same_run(saved, state.config)
                restore(state, saved)
                rank_averages = saved.tensors.get(RANK_BATCH_NORM)
    state.step, state.losses, state.best_value, state.saved_digest, is_resumed = (
        communicator.broadcast(
            (
                *(state.step, state.losses, state.best_value),
                *(state.saved_digest, is_resumed),
            )
        )
    )
    communicator.broadcast_variables(list(state.tensors().values()))
    if rank_averages is not None and len(rank_averages) != communicator.num_ranks:
        rank_averages = None
    own = communicator.scatter(rank_averages)
    if own is not None:
        assign_flat(state.batch_norm_averages, own)
    if is_resumed and state.rank_variables:
        _restore_own(state, step_dirs.of_step(model_dir, state.step), communicator)


def _load_newest(
    state: TrainState, model_dir: Path, communicator: Communicator
) -> Checkpoint | None:
    with communicator.collective_errors():
        if communicator.rank == 0:
            step_dirs.remove_leftovers(model_dir)
            if not state.rank_variables:
                return tensors.load_newest(model_dir, quarantine=True)
    if state.rank_variables:
        return tensors.load_newest_on_ranks(model_dir, communicator)
    return None


def _restore_own(state: TrainState, folder: Path, communicator: Communicator) -> None:
    """Gives each rank what it has saved, if all of these ranks have saved theirs.

    Else each rank gets the optimizer's state of one that saved its own.
    """
    own = state.own_variables
    with communicator.collective_errors():
        num_ranks = integrity.read_metadata(folder)["num_ranks"]
        saved = tensors.load_rank(folder, communicator.rank % num_ranks, num_ranks)
    is_other = num_ranks != communicator.num_ranks or saved.keys() != own.keys()
    if communicator.any_rank(is_other):
        names = own.keys() & saved.keys() & state.optimizer.slots.keys()
        logging.warning(
            "the checkpoint of step %d has no state of single ranks for a job of %s:"
            " %s",
            state.step,
            counted(communicator.num_ranks, "rank"),
            _instead(own, bool(names)),
        )
        own = {name: own[name] for name in names}
        saved = {name: saved[name] for name in names}
    with communicator.collective_errors():
        problem = "the ranks' own state in the checkpoint must be that of this run"
        assign(own, saved, problem)


def _instead(own: Iterable[str], has_slots: bool) -> str:
    """Returns what ranks begin with in place of variables of these stored names."""
    kinds = {name.split("/")[0] for name in own}
    sentences = []
    if "velocity" in kinds:
        source = (
            "are those of one of the old ranks" if has_slots else "begin with zeros"
        )
        sentences.append(f"the velocities {source}")
    if "weight" in kinds:
        sentences.append("the weights are the mean over the old ranks")
    if kinds - {"velocity", "weight"}:
        sentences.append("the state of compression, such as residuals, begins anew")
    return ", ".join(sentences)


def restore(state: TrainState, saved: Checkpoint) -> None:
    """Assigns what all ranks have in common; UserError if it is another network's."""
    common = dict(saved.tensors)
    common.pop(RANK_BATCH_NORM, None)
    assign(state.tensors(), common, _other_network(state.model))
    state.step = saved.step
    state.losses = list(saved.metadata.get("losses", []))
    state.best_value = best_value(saved.metadata, state.config.best_metric)
    state.num_log_lines = saved.metadata.get("num_log_lines")
    state.saved_digest = saved.metadata.get("state_digest")


def _other_network(model: keras.Model) -> str:
    return f"the checkpoint is not one of this {model.name}"


def _check_is_same_run(saved: Checkpoint, config: Config) -> None:
    """Refuses a checkpoint with other settings; warns if the installation differs."""
    settings = saved.metadata["config"]
    refuse_other(json_file.instance(Config, settings, "the settings"), config)
    now, then = versions.describe(), saved.metadata.get("installation", {})
    changed = [name for name, value in then.items() if now.get(name) != value]
    if changed:
        logging.warning(
            "the checkpoint of step %d was saved with a different %s: the results may"
            " not be bitwise identical to those of an uninterrupted run",
            saved.step,
            ", ".join(changed),
        )


def _start(state: TrainState, initialize: Callable[[], None] | None) -> None:
    config = state.config
    state.step = phases.first_step(config.phases, config.first_phase)
    if initialize is not None:
        initialize()
        state.restart_averages()
    if config.initial_weights:
        assign_initial_weights(state.model, config)
        state.restart_averages()
    elif state.step:
        logging.warning(
            "the training starts with phase %s, at step %d, from random initialization;"
            " pass --initial_weights for the weights of the previous phases",
            config.first_phase,
            state.step,
        )
    if config.optimizer == "muon":
        muon.normalize_kernels(state.model)
        state.restart_averages()


def assign_initial_weights(model: keras.Model, config: Config) -> bool:
    """Assigns the weights that the settings name to a network, all or none.

    A classifier for other classes keeps its values; False is returned then. Raises
    UserError if the weights can't be read, or are those of another network.
    """
    shapes = {
        variable.path: tuple(map(int, variable.shape)) for variable in model.variables
    }
    values = initial.load(Path(config.initial_weights), config, shapes)
    for variable in model.variables:
        if variable.path in values:
            variable.value.assign(values[variable.path])
    return len(values) == len(shapes)


@dataclass(frozen=True)
class TrainedNetwork:
    """A network, the settings of its run, and where its weights come from."""

    model: keras.Model
    config: Config
    step: int  # That of the checkpoint.
    weights: str  # "raw", or "ema" for their exponential moving average.


def load_network(
    config: Config, model_dir: Path, step: int | None = None, weights: str | None = None
) -> TrainedNetwork:
    """Returns the network of a run, with the statistics of the checkpoint.

    Without a step it is the newest checkpoint that is intact; without weights, "ema" if
    the run has it, else "raw". Raises UserError if there is no such checkpoint, or it
    is corrupt, or has no such weights.
    """
    weights = weights or ("ema" if config.ema_decay else "raw")
    if step is None:
        saved = tensors.load_from(model_dir)
    else:
        saved = tensors.load(model_dir, step)
    model = build_model(config)
    prefix = _PREFIXES[weights]
    variables = {
        f"{prefix}{variable.path}": variable.value for variable in model.variables
    }
    of_network = filter(lambda name: name.startswith(prefix), saved.tensors)
    values = {name: saved.tensors[name] for name in of_network}
    assign(variables, values, _other_network(model))
    return TrainedNetwork(model, config, saved.step, weights)


# A host may remember for so long that a file on NFS doesn't exist (acdirmax is 60 s).
_SECONDS = 90.0
_POLL_SECONDS = 0.5


def check_is_shared(
    model_dir: Path, communicator: Communicator, seconds: float = _SECONDS
) -> None:
    """Refuses a folder that not all ranks see; to be called on all ranks.

    Rank 0 creates the folder, and an empty file in it, for which the other ranks look
    for so many seconds. Raises AgreedError, on all ranks, naming the first one that
    doesn't see the file.
    """
    name = communicator.broadcast(f".shared-{secrets.token_hex(8)}")
    with communicator.collective_errors():
        if communicator.rank == 0:
            with naming_failures(f"writing to {model_dir}"):
                model_dir.mkdir(parents=True, exist_ok=True)
                (model_dir / name).touch()
    is_there = _appears(model_dir / name, seconds)
    answers = communicator.allgather((is_there, platform.node()))
    if communicator.rank == 0:
        (model_dir / name).unlink(missing_ok=True)
    for rank, (sees_it, host) in enumerate(answers):
        if not sees_it:
            raise AgreedError(
                "--model_dir must be a folder that all ranks share, since each rank"
                f" saves state of its own in it; rank {rank} on {host} doesn't see in"
                f" {model_dir} what rank 0 on {answers[0][1]} has written there. Name"
                " a folder on a file system that all hosts mount."
            )


def _appears(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        # An NFS client asks the server what is in a folder if the folder is listed, or
        # the nearest one above it that exists; else it trusts its own memory.
        for folder in path.parents:
            with contextlib.suppress(OSError):
                os.listdir(folder)
                break
        if path.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
