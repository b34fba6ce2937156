"""Restores the state of a run from a checkpoint, or starts it as its settings say."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
from absl import logging

from resnet.checkpoint import merged_ranks, step_dirs, tensors
from resnet.checkpoint.assignment import assign
from resnet.checkpoint.merged_ranks import PartOfMean
from resnet.checkpoint.rank_files import RankFiles
from resnet.checkpoint.retention import best_top1
from resnet.checkpoint.tensors import RANK_BATCH_NORM, Checkpoint
from resnet.checkpoint.weight_formats import initial
from resnet.config import phases
from resnet.config.config import Config, config_from_json, refuse_other
from resnet.distributed.communicator import Communicator
from resnet.distributed.shared_folder import check_is_shared
from resnet.optim.train_state import TrainState, assign_flat
from resnet.runtime import versions

_OTHER_OWN_STATE = "the ranks' own state in the checkpoint must be that of this run"


def restore_newest(
    state: TrainState,
    model_dir: Path,
    communicator: Communicator,
    initialize: Callable[[], None] | None = None,
) -> None:
    """Restores the newest intact checkpoint, or starts a new run; on all ranks.

    Rank 0 reads the checkpoint, or initializes a new run, and broadcasts the variables.
    If the number of ranks is still that of the checkpoint, each rank gets its own
    BatchNorm averages back and reads its own `rank_variables`. Otherwise all ranks get
    the mean of the averages, and that of the `rank_variables`. In a round of local SGD
    the weights are treated as these are.

    Args:
        state: The state of a new run, which is replaced.
        model_dir: Folder of the run; all ranks must see it if they have
            `rank_variables`.
        communicator: The ranks of the job.
        initialize: A function that sets weights of a new network which depend on the
            training images, called on rank 0 before any initial weights are loaded;
            None if there are no such weights.

    Raises:
        AgreedError: On all ranks, if there are checkpoints but none can be restored, or
            if ranks with `rank_variables` don't all see the folder.
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
                check_is_same_run(saved, state.config)
                restore(state, saved)
                rank_averages = saved.tensors.get(RANK_BATCH_NORM)
    state.step, state.losses, state.top1, is_resumed = communicator.broadcast(
        (state.step, state.losses, state.top1, is_resumed)
    )
    communicator.broadcast_variables(list(state.tensors().values()))
    if rank_averages is not None and len(rank_averages) != communicator.num_ranks:
        rank_averages = None
    own = communicator.scatter(rank_averages)
    if own is not None:
        assign_flat(state.batch_norm_averages, own)
    if is_resumed and state.rank_variables:
        _restore_own(state, step_dirs.of_step(model_dir, state.step), communicator)


def _restore_own(
    state: TrainState, checkpoint: Path, communicator: Communicator
) -> None:
    """Gives each rank what it has saved, or the mean of what other ranks have saved."""
    with communicator.collective_errors():
        files = RankFiles(checkpoint)
        is_as_many = files.num_ranks == communicator.num_ranks
        saved_own = files.read(communicator.rank) if is_as_many else {}
        is_other = saved_own.keys() != state.own_variables.keys()
        if not is_other:
            assign(state.own_variables, saved_own, _OTHER_OWN_STATE)
    # Another number of ranks, or another exchange of compressed gradients.
    if communicator.any_rank(is_other):
        _restore_mean_of_ranks(state, files, communicator)


def _restore_mean_of_ranks(
    state: TrainState, files: RankFiles, communicator: Communicator
) -> None:
    """Gives each rank the mean of what another number of ranks has saved of its own.

    So the mean over ranks stays the same. Without such files, each rank's own state
    stays that of a new run, and a warning says so.
    """
    if not files.num_ranks:
        logging.warning(
            "the checkpoint of step %d has no state of the ranks' own, such as the"
            " residuals of error feedback: it is reset",
            state.step,
        )
        return
    with communicator.collective_errors():
        part = PartOfMean.of(_read_share(files, communicator), files.num_ranks)
    communicator.report_status("adding up what the ranks saved", waits_for_others=True)
    shapes = {name: one.shape.as_list() for name, one in state.own_variables.items()}
    merged = merged_ranks.merge(part, communicator, shapes, state.config.dense_below)
    with communicator.collective_errors():
        assign(state.own_variables, merged, _OTHER_OWN_STATE)


def _read_share(
    files: RankFiles, communicator: Communicator
) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    """Yields what some of the ranks have saved; each one is read by one rank."""
    for rank in range(communicator.rank, files.num_ranks, communicator.num_ranks):
        communicator.report_status(
            f"reading what rank {rank} of {files.num_ranks} saved", is_timed=False
        )
        yield rank, files.read(rank)


def _load_newest(
    state: TrainState, model_dir: Path, communicator: Communicator
) -> Checkpoint | None:
    """Returns the newest intact checkpoint to rank 0, if there is one."""
    with communicator.collective_errors():
        if communicator.rank == 0:
            step_dirs.remove_leftovers(model_dir)
            if not state.rank_variables:
                return tensors.load_newest(model_dir, quarantine=True)
    if state.rank_variables:
        return tensors.load_newest_on_ranks(model_dir, communicator)
    return None


def restore(state: TrainState, saved: Checkpoint) -> None:
    """Assigns everything that all ranks have in common from a checkpoint.

    Raises:
        UserError: If the checkpoint is that of another network.
    """
    common = dict(saved.tensors)
    common.pop(RANK_BATCH_NORM, None)
    problem = f"the checkpoint is not one of this {state.model.name}"
    assign(state.tensors(), common, problem)
    state.step = saved.step
    state.losses = list(saved.metadata.get("losses", []))
    state.top1 = best_top1(saved.metadata)
    state.num_log_lines = saved.metadata.get("num_log_lines")


def load_initial_weights(state: TrainState) -> None:
    """Assigns the weights that the settings name, also to their averages, all or none.

    A classifier for other classes keeps its values.

    Raises:
        UserError: If the weights can't be read, or are those of another network.
    """
    assign_initial_weights(state.model, state.config)
    state.restart_averages()


def assign_initial_weights(model: keras.Model, config: Config) -> bool:
    """Assigns the weights that the settings name to a network, all or none.

    A classifier for other classes keeps its values.

    Returns:
        Whether all weights are assigned, those of the classifier too.

    Raises:
        UserError: If the weights can't be read, or are those of another network.
    """
    shapes = {one.path: tuple(one.shape) for one in model.variables}
    values = initial.load(Path(config.initial_weights), config, shapes)
    for variable in model.variables:
        if variable.path in values:
            variable.value.assign(values[variable.path])
    return len(values) == len(shapes)


def check_is_same_run(saved: Checkpoint, config: Config) -> None:
    """Refuses a checkpoint with other settings; warns if the installation differs.

    Raises:
        UserError: If settings that decide the result differ, naming these settings.
    """
    refuse_other(config_from_json(saved.metadata["config"]), config)
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
    """Sets the first step and the initial weights of a new run, as its settings say."""
    config = state.config
    state.step = phases.first_step(config.phases, config.first_phase)
    if initialize is not None:
        initialize()
        state.restart_averages()
    if config.initial_weights:
        load_initial_weights(state)
    elif state.step:
        logging.warning(
            "the training starts with phase %s, at step %d, from random initialization;"
            " pass --initial_weights for the weights of the previous phases",
            config.first_phase,
            state.step,
        )
    state.begin_run()
