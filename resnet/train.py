"""Training: one step of a run, and the loop."""

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.atomic_files import atomic_write_bytes
from resnet import schedules
from resnet.config import Config
from resnet.data import batches
from resnet.data.record_log import RecordLog
from resnet.data.share import Share
from resnet.distributed import AgreedFailure, Communicator
from resnet.evaluate import Evaluator
from resnet.input_wait import InputWait
from resnet.metrics_log import MetricsLog
from resnet.optim import losses
from resnet.optim.optimizers import Momentum
from resnet.progress import Progress
from resnet.saving import Saving
from resnet.stop_signals import Preempted, StopSignals
from resnet.train_state import TrainState, averaged_batch_norm, restore_newest

NUM_VOTES = 2  # Whether to leave, and whether to save.
StepFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def make_train_step(
    model: keras.Model,
    optimizer: Momentum,
    names: Sequence[str],
    label_smoothing: float,
    communicator: Communicator,
    freeze_batch_norm: bool = False,
) -> StepFunction:
    """Returns `train_step(images, labels, learning_rate, votes)`, made into a graph.

    It moves the variables by one step and returns what all ranks then know, float32:
    the mean cross-entropy of this rank's examples, the same of the whole global batch,
    and the mean over ranks of each of the votes, `[num_votes]` float32. These travel
    while the gradients are computed, and cost no time of their own. Each rank must call
    it as often as the others.

    Args:
        model: The network.
        optimizer: Of the network's trainable variables.
        names: Of those variables, for the exchange of their gradients.
        label_smoothing: As `losses.cross_entropy` takes it.
        communicator: The ranks, whose gradients are averaged.
        freeze_batch_norm: Whether to normalize by the moving averages, which then stay.
    """
    gradient_names = [f"gradient/{name}" for name in names]

    @tf.function
    def train_step(
        images: tf.Tensor, labels: tf.Tensor, learning_rate: tf.Tensor, votes: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=not freeze_batch_norm)
            loss = tf.reduce_mean(losses.cross_entropy(logits, labels, label_smoothing))
        own = tf.concat([[loss], votes], axis=0)
        (of_all,) = communicator.average([own], ["loss_and_votes"])
        gradients = tape.gradient(loss, optimizer.variables)
        own_loss = nan_unless_finite(loss, gradients[0])
        gradients = communicator.average(gradients, gradient_names)
        optimizer.apply(gradients, learning_rate)
        loss_of_all = nan_unless_finite(of_all[0], gradients[0])
        return tf.concat([[own_loss, loss_of_all], of_all[1:]], axis=0)

    return train_step


def nan_unless_finite(loss: tf.Tensor, first_gradient: tf.Tensor) -> tf.Tensor:
    """Returns the loss; or NaN if the gradient of the first variable has one.

    That gradient is the last to be computed, and what is no number anywhere reaches it.
    The loss alone doesn't tell: TensorFlow's max pooling lets a NaN vanish.
    """
    is_finite = tf.math.is_finite(tf.reduce_sum(first_gradient))
    return tf.where(is_finite, loss, np.float32(np.nan))


def train(
    config: Config,
    train_share: Share,
    eval_share: Share | None,
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
        Preempted: On all ranks, if one of them was asked to leave.
        UserError: If a record is damaged and none may be.
    """
    model_dir = Path(config.model_dir)
    state = TrainState(config)
    restore_newest(state, model_dir, communicator)
    train_step = make_train_step(
        state.model, state.optimizer, state.names, config.label_smoothing, communicator
    )
    train_batches = batches.training(
        config, train_share, communicator.num_ranks, state.step, num_parallel_calls
    )
    evaluator = None
    if eval_share is not None:
        evaluator = Evaluator(
            state.model, eval_share, config, communicator, num_parallel_calls
        )
    with communicator.together():
        record_log = RecordLog(
            config.record_log, state.step, communicator.rank, communicator.num_ranks
        )
        log = MetricsLog(model_dir, state.step, communicator.rank)
    saving = Saving(config, state, communicator)
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
        while state.step < config.train_steps:
            learning_rate = schedules.gradual_warmup_then_dec(
                state.step,
                config.base_learning_rate,
                config.warmup_steps,
                config.peak_learning_rate,
                config.train_steps,
            )
            communicator.doing(f"reading the batch of step {state.step + 1}")
            with input_wait.waiting():
                batch = next(train_batches)
            examples = train_share.records.number_of_example[batch.examples.numpy()]
            record_log.write(state.step, examples, batch.is_real.numpy())
            num_skipped += int(np.count_nonzero(~batch.is_real.numpy()))
            communicator.doing(
                f"computing step {state.step + 1}",
                is_timed=state.step > first_step,  # The first one makes the graph.
                waits_for_others=True,
            )
            wants_to_leave = signals is not None and bool(signals.seen)
            own_loss, loss, leave, save = train_step(
                batch.images,
                batch.labels,
                tf.constant(learning_rate, tf.float32),
                tf.constant([float(wants_to_leave), float(saving.wanted)]),
            ).numpy()
            state.step += 1
            if not math.isfinite(loss):
                stop_diverged(state.step, own_loss, examples, model_dir, communicator)
            state.losses.append(float(loss))
            progress.step_done()
            input_wait.step_done()

            if _due(state.step, config.log_step_count_steps, config):
                mean_loss = math.fsum(state.losses) / len(state.losses)
                mean_loss += losses.weight_penalty(
                    state.decayed_variables, config.weight_decay
                )
                state.losses.clear()
                numbers = {
                    "loss": mean_loss,
                    "learning_rate": learning_rate,
                    "images_per_second": progress.show(
                        state.step, mean_loss, learning_rate
                    ),
                    "input_wait_share": input_wait.report(communicator),
                }
                if config.on_bad_record == "skip":
                    (total,) = communicator.sum(np.array([num_skipped]))
                    numbers["skipped_records"] = int(total)
                    num_skipped = 0
                log.write("train", state.step, config.epoch(state.step), numbers)
            evaluated = None
            if evaluator and _due(state.step, config.steps_per_eval, config):
                with progress.paused():
                    with averaged_batch_norm(state, communicator):
                        result = evaluator.evaluate(state.decayed_variables)
                    evaluated = result.as_dict()
                    epoch = config.epoch(state.step)
                    log.write("eval", state.step, epoch, evaluated)
                    progress.say(f"step {state.step}: {result}")
                input_wait.paused()
            if evaluated or save or leave or saving.is_due:
                log.sync()
                saving.save(evaluated)
                input_wait.paused()
            if leave and state.step < config.train_steps:
                saving.finish()
                raise Preempted(f"stopped after step {state.step}, which is saved")
        saving.finish()
    logging.info(
        "Finished training up to step %d. Elapsed seconds %d.",
        state.step,
        time.monotonic() - started,
    )


def _due(step: int, every: int, config: Config) -> bool:
    """Returns whether what happens every so many steps, and at the end, is due."""
    return step == config.train_steps or (every > 0 and step % every == 0)


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
