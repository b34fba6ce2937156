"""Training: the loop over the steps of a run, and what is due between them."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np

from resnet.checkpoint.manager import CheckpointManager
from resnet.checkpoint.restore import restore_newest
from resnet.config import phases
from resnet.data import batches
from resnet.data.input_pipeline import Batch, Reading
from resnet.distributed.communicator import Communicator
from resnet.evaluation.evaluations import Evaluations
from resnet.exchange.gradients import GradientExchange, LocalExchange, make_exchange
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState
from resnet.runtime.divergence import OpenDisagreement, check_loss
from resnet.runtime.job import Job, Run
from resnet.runtime.preemption import RESUME, START_AGAIN, Preempted, stop_requested
from resnet.training import image_statistics
from resnet.training.audit import Audit
from resnet.training.local_sgd import Synchronization
from resnet.training.train_step import TrainStep


def train_and_evaluate(run: Run, job: Job) -> bool:
    """Trains to `config.last_step`, from the newest checkpoint if there is one.

    Returns whether it has done all steps of the run, or reached `stop_at`.

    Raises:
        AgreedError: On all ranks, if the run's folder is removed or replaced.
        AgreedFailure: On all ranks, if the loss is no longer finite.
        Preempted: On all ranks, if one of them was asked to stop; the state is saved.
        UserError: If a record is corrupt and none may be skipped.
        Exception: Any other. If all ranks fail, the last completed step is saved.
    """
    config, communicator = run.config, job.communicator
    state, exchange = _restored_state(run, job)
    reading = Reading.of_run(
        config, run.train, communicator.num_ranks, job.num_parallel_calls(config)
    )
    train_batches = batches.train_batches(reading, state.step)
    audit = Audit(state, reading, job)
    synchronize = Synchronization(state, communicator, exchange)
    evaluations = Evaluations(run, state, job)
    log = RunLog(config, state, communicator)
    manager = CheckpointManager(
        config, state, communicator, run.lock, run.verify_records
    )
    log.training_starts()
    disagreement = OpenDisagreement(run.folder, communicator)
    save_state = functools.partial(save, manager, log)
    with closing(log), closing(manager), manager.saved_if_failed(save_state):
        if communicator.any_rank(stop_requested(job.signals)):
            advice = RESUME if state.step else START_AGAIN
            raise Preempted(f"stopped before step {state.step + 1}", advice, state.step)
        train_step = _step_of_phase(state, exchange, communicator)
        while True:
            evaluate_and_save(evaluations, manager, log)
            if state.step >= config.last_step or evaluations.target_is_reached:
                break
            if phases.at(config.phases, state.step) is not train_step.phase:
                train_step = _step_of_phase(state, exchange, communicator)
            _begin_step(state, exchange, communicator)
            settings = config.settings_at(state.step)
            last, places, mask = _read_and_accumulate(
                train_batches, train_step, state, log, communicator
            )
            examples = run.train.records.number_of_example[places]
            log.examples_read(state.step, examples, mask)
            log.step_begins()
            result = train_step(
                last,
                settings,
                stop_requested(job.signals),
                manager.wanted,
                audit(train_step, last, log.costs),
                wants_digest=state.saved_digest is not None,
            )
            if state.saved_digest is not None:
                log.receipt(
                    communicator.allgather(result.digest), job.threads.num_intra_threads
                )
            state.end_step()
            losses = (result.loss, result.local_loss)
            check_loss(losses, state.step, examples, run.folder, communicator)
            state.losses.append(float(result.loss))
            account = synchronize(result.account)
            state.is_whole = True
            log.step_done(settings, account)
            is_last = state.step == config.last_step
            is_stopped = result.stop_requested or audit.stops_run
            is_wanted = result.save_requested and state.is_synchronized
            is_wanted |= disagreement.step == state.step
            if is_wanted or is_stopped or is_last or manager.is_due:
                save_state()
            disagreement.settle(state.step, state.saved_digest)
            if is_stopped and not (is_last and run.evaluated is None):
                manager.finish()
                raise _stopped(state.step, audit)
        manager.finish()
        if state.saved_digest is not None:
            log.receipt()
    log.training_ended(evaluations.target_is_reached)
    return state.step >= config.train_steps or evaluations.target_is_reached


def _stopped(step: int, audit: Audit) -> Preempted:
    """Returns why a run ends after a step: a stop request, or what an audit found."""
    reason = f"stopped after step {step}, which is saved"
    if not audit.stops_run:
        return Preempted(reason, step=step)
    reason += f", since {audit.bad_rank} has computed wrong gradients"
    return Preempted(reason, step=step, hosts=sorted(audit.bad_hosts))


def _restored_state(run: Run, job: Job) -> tuple[TrainState, GradientExchange]:
    """Returns the newest state, or that before step 1, and its gradients' exchange."""
    config, communicator = run.config, job.communicator
    with communicator.collective_errors():
        state = TrainState(config)
    exchange = make_exchange(config, state.shapes, communicator)
    state.rank_variables.update(exchange.rank_variables)
    initialize = image_statistics.initializer(
        state.model, config, run.train, job.num_parallel_calls(config)
    )
    restore_newest(state, run.folder, communicator, initialize)
    return state, exchange


def _begin_step(
    state: TrainState, exchange: GradientExchange, communicator: Communicator
) -> None:
    """Prepares the state for a phase, if one begins with the next step."""
    state.begin_step()
    if phases.resets_momentum_at(state.config.phases, state.step):
        exchange.reset_momentum()
    if phases.freezes_batch_norm_at(state.config.phases, state.step):
        # Otherwise each rank would normalize with averages of its own from now on.
        communicator.allreduce_mean(state.batch_norm_averages)


def evaluate_and_save(
    evaluations: Evaluations, manager: CheckpointManager, log: RunLog
) -> None:
    """Evaluates, if that is due, after a save, since it takes long, and saves again.

    Raises:
        AgreedError: On all ranks, if a save has failed.
        Preempted: On all ranks, if the evaluation is stopped; the state is saved.
    """
    if not evaluations.is_due:
        return
    save(manager, log)
    try:
        results = evaluations.run(log)
    except Preempted:
        manager.finish()
        raise
    save(manager, log, results)


def _step_of_phase(
    state: TrainState, exchange: GradientExchange, communicator: Communicator
) -> TrainStep:
    """Returns the step of the phase that the next step of the run is in."""
    phase = phases.at(state.config.phases, state.step)
    if phase.is_local:
        exchange = LocalExchange(communicator.collectives, [])
    return TrainStep(state, phase, exchange)


def _read_and_accumulate(
    train_batches: Iterator[Batch],
    train_step: TrainStep,
    state: TrainState,
    log: RunLog,
    communicator: Communicator,
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Reads this rank's part of a global batch, micro-batch by micro-batch.

    The gradients of all micro-batches except the last one are accumulated. Returns the
    last one; then for all together the places of the examples among the records of the
    shard, int64 `[local_batch]`, and their mask, bool `[local_batch]`, which is False
    where an example replaces a corrupt one.
    """
    step, num_micro_batches = state.step, state.config.accumulation_steps
    micro_batches: list[Batch] = []
    for number in range(1, num_micro_batches + 1):
        communicator.report_status(f"reading the batch of step {step + 1}")
        with log.costs.waiting():
            micro_batch = next(train_batches)
        micro_batches.append(micro_batch)
        is_last = number == num_micro_batches
        communicator.report_status(
            f"computing step {step + 1}",
            is_timed=train_step.is_traced,  # Tracing the graph takes long.
            waits_for_others=is_last,
        )
        if not is_last:
            train_step.accumulate(micro_batch, step)
    return (
        micro_batches[-1],
        np.concatenate([batch.examples.numpy() for batch in micro_batches]),
        np.concatenate([batch.mask.numpy() for batch in micro_batches]),
    )


def save(
    manager: CheckpointManager,
    log: RunLog,
    results: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Flushes the metrics so far to disk, then saves the state.

    `results` are those of evaluating this very state, by the kind of their metrics
    line; None if it was not evaluated.
    """
    with log.progress.paused():
        log.sync()
        manager.save(results or {})
    log.costs.paused()
