"""Training: the loop over the steps of a run, and what is due between them."""

import json
import math
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from absl import logging

from data_prep.atomic_files import atomic_write_bytes
from resnet import intervals, phases, weights_in_turn
from resnet.checkpoint_restore import restore_newest
from resnet.checkpoint_retention import best_top1
from resnet.config import Config
from resnet.data import batches
from resnet.data.example_shard import ExampleShard
from resnet.data.record_log import RecordLog
from resnet.distributed import AgreedFailure, Communicator
from resnet.evaluate import Evaluator, Result
from resnet.input_wait import InputWait
from resnet.metrics_log import MetricsLog
from resnet.progress import Progress
from resnet.recalibration import Recalibration
from resnet.saving import CheckpointManager
from resnet.stop_signals import Preempted, StopSignals
from resnet.train_state import TrainState, averaged_batch_norm, ema_decay
from resnet.train_step import StepRates, TrainStep


def train(
    config: Config,
    train_share: ExampleShard,
    eval_share: ExampleShard | None,
    communicator: Communicator,
    num_parallel_calls: int,
    signals: StopSignals | None = None,
) -> None:
    """Trains to `config.train_steps`, from the newest checkpoint if there is one.

    Args:
        config: The run's settings, whose precision is no longer "auto".
        train_share: What to train on.
        eval_share: What to evaluate on, at the end and as the settings say; or None.
        communicator: The ranks.
        num_parallel_calls: Pictures that a rank decodes at the same time.
        signals: What may ask this rank to leave.

    Raises:
        AgreedFailure: On all ranks, if the loss is no longer finite.
        Preempted: On all ranks, if one of them was asked to leave; what was done is
            saved.
        UserError: If a record is damaged and none may be.
    """
    model_dir = Path(config.model_dir)
    state = TrainState(config)
    restore_newest(state, model_dir, communicator)
    train_batches = batches.training(
        config, train_share, communicator.num_ranks, state.step, num_parallel_calls
    )
    evaluator, recalibration = None, None
    if eval_share is not None:
        evaluator = Evaluator(
            state.model,
            eval_share,
            config,
            communicator,
            num_parallel_calls,
            signals=signals,
        )
        if config.recalibration_batches:
            recalibration = Recalibration(
                state.model,
                train_share,
                config,
                communicator,
                num_parallel_calls,
                signals,
            )
    with communicator.together():
        record_log = RecordLog(
            config.record_log, state.step, communicator.rank, communicator.num_ranks
        )
        was_evaluated = state.top1 is not None
        log = MetricsLog(model_dir, state.step, communicator.rank, was_evaluated)
    saving = CheckpointManager(config, state, communicator)
    logging.info(
        "Training for %d steps (%.2f epochs in total). Current step %d.",
        config.train_steps,
        config.epoch(config.train_steps),
        state.step,
    )
    started = time.monotonic()
    input_wait = InputWait()
    with (
        closing(log),
        closing(Progress(config, state.step, communicator.rank)) as progress,
        closing(record_log),
        closing(saving),
    ):
        if any(communicator.gather(signals is not None and bool(signals.seen))):
            raise Preempted(f"stopped before step {state.step + 1}")
        num_skipped = 0
        first_step = state.step
        phase = phases.at(config.phases, state.step)
        train_step = TrainStep(state, phase, communicator)
        while True:
            is_due = evaluation_is_due(config, state.step) and state.top1 is None
            if evaluator and is_due:
                save_state(saving, log, {})  # Before what takes long.
                evaluated = {}
                with progress.paused():
                    for name, result in evaluate(
                        state, evaluator, recalibration, communicator
                    ):
                        evaluated[name] = result.as_dict()
                        epoch = config.epoch(state.step)
                        log.write(name, state.step, epoch, evaluated[name])
                        whose = " of the average" if name == "eval_ema" else ""
                        progress.say(f"step {state.step}{whose}: {result}")
                state.top1 = best_top1(evaluated)
                save_state(saving, log, evaluated)
                input_wait.paused()
            if state.step >= config.train_steps or _is_good_enough(state):
                break
            if phase is not (now := phases.at(config.phases, state.step)):
                phase, train_step = now, TrainStep(state, now, communicator)
                first_step = state.step
            if phases.forgets_at(config.phases, state.step):
                state.optimizer.forget()
            rates = rates_of(config, state.step)
            seen = []
            for number in range(1, config.accumulation_steps + 1):
                communicator.doing(f"reading the batch of step {state.step + 1}")
                with input_wait.waiting():
                    part = next(train_batches)
                seen.append((part.examples.numpy(), part.mask.numpy()))
                is_last = number == config.accumulation_steps
                communicator.doing(
                    f"computing step {state.step + 1}",
                    is_timed=state.step > first_step,  # The first one makes the graph.
                    waits_for_others=is_last,
                )
                if not is_last:
                    train_step.add(part)
            examples, mask = map(np.concatenate, zip(*seen, strict=True))
            examples = train_share.records.number_of_example[examples]
            record_log.write(state.step, examples, mask)
            num_skipped += int(np.count_nonzero(~mask))
            wants_to_leave = signals is not None and bool(signals.seen)
            outcome = train_step(part, rates, [wants_to_leave, saving.wanted])
            leave, save = outcome.votes > 0
            state.step, state.top1 = state.step + 1, None
            if not math.isfinite(outcome.loss):
                stop_diverged(
                    state.step, outcome.own_loss, examples, model_dir, communicator
                )
            state.losses.append(float(outcome.loss))
            progress.step_done()
            input_wait.step_done()

            is_done = state.step == config.train_steps
            if is_done or state.step % config.log_step_count_steps == 0:
                mean_loss = math.fsum(state.losses) / len(state.losses)
                mean_loss += state.weight_penalty()
                state.losses.clear()
                numbers = {
                    "loss": mean_loss,
                    "learning_rate": rates.learning_rate,
                    "images_per_second": progress.show(
                        state.step, mean_loss, rates.learning_rate
                    ),
                    "input_wait_share": input_wait.report(communicator),
                }
                if config.on_bad_record == "skip":
                    (total,) = communicator.sum(np.array([num_skipped]))
                    numbers["skipped_records"] = int(total)
                    num_skipped = 0
                log.write("train", state.step, config.epoch(state.step), numbers)
            if save or leave or saving.is_due:
                save_state(saving, log, {})
                input_wait.paused()
            if leave and (state.step < config.train_steps or evaluator):
                saving.finish()
                raise Preempted(f"stopped after step {state.step}, which is saved")
        saving.finish()
    if _is_good_enough(state) and state.step < config.train_steps:
        logging.info("Top-1 has reached --stop_at_top1=%g.", config.stop_at_top1)
    logging.info(
        "Finished training up to step %d. Elapsed seconds %d.",
        state.step,
        time.monotonic() - started,
    )


def save_state(
    saving: CheckpointManager,
    log: MetricsLog,
    evaluated: Mapping[str, Mapping[str, float]],
) -> None:
    """Saves the state, once the lines before it can't be lost any more."""
    log.sync()
    saving.save(evaluated)


def rates_of(config: Config, step: int) -> StepRates:
    """Returns what changes from step to step, of one step from 0."""
    return StepRates(
        phases.learning_rate(config.phases, step),
        phases.momentum(config.phases, step, config.momentum_correction),
        ema_decay(config, step),
    )


def evaluation_is_due(config: Config, step: int) -> bool:
    """Returns whether the settings ask for one after so many steps."""
    if step == config.train_steps:
        return True
    if not config.eval_every or step == 0:
        return False
    interval = intervals.parse(config.eval_every, "--eval_every")
    return interval.ends_at(step, config.num_train_examples, config.global_batch_size)


def evaluate(
    state: TrainState,
    evaluator: Evaluator,
    recalibration: Recalibration | None,
    communicator: Communicator,
) -> Iterator[tuple[str, Result]]:
    """Yields what the weights are worth, and then their moving averages, if any.

    Recalibrated, if the settings say so; each rank goes on with its own statistics.
    """
    chosen = weights_in_turn.all_of(state)
    with averaged_batch_norm(state, communicator):
        for weights in weights_in_turn.each(
            state, chosen, recalibration, communicator.num_ranks
        ):
            result = evaluator.evaluate(state.weight_penalty())
            yield weights_in_turn.FACTS[weights], result


def _is_good_enough(state: TrainState) -> bool:
    return 0 < state.config.stop_at_top1 <= (state.top1 or 0.0)


def stop_diverged(
    step: int,
    own_loss: float,
    examples: np.ndarray,
    model_dir: Path,
    communicator: Communicator,
) -> None:
    """Ends a run whose loss is no number, and writes down what made it so.

    `model_dir/diverged-step-00000123.json` then has the records of each rank whose own
    loss is not finite, numbered as the manifest lists them.

    Raises:
        AgreedFailure: On all ranks.
    """
    mine = None
    if not math.isfinite(own_loss):
        mine = {
            "rank": communicator.rank,
            "host": platform.node(),
            "loss": str(own_loss),
            "examples": examples.tolist(),
        }
    found = [one for one in communicator.gather(mine) if one is not None]
    path = model_dir / f"diverged-step-{step:08d}.json"
    if communicator.rank == 0:
        text = json.dumps({"step": step, "ranks": found}) + "\n"
        with suppress(OSError):  # The loss is what the run ends for.
            atomic_write_bytes(path, text.encode())
    where = ", ".join(f"rank {one['rank']} on {one['host']}" for one in found[:5])
    raise AgreedFailure(
        f"the loss of step {step} is no number on {where or 'the mean of all ranks'}:"
        f" the training has diverged, or a record is to blame; {path} lists those of"
        " the step. The last checkpoint is from before. Lower --peak_learning_rate or"
        " lengthen the warm-up."
    )
