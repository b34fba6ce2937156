"""Training: the state of a run, one step of it, and the loop."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.errors import UserError
from resnet import checkpoints, models, schedules
from resnet.config import Config
from resnet.data import batches
from resnet.data.record_log import RecordLog
from resnet.data.share import Share
from resnet.distributed import Communicator
from resnet.evaluate import Evaluator
from resnet.input_wait import InputWait
from resnet.metrics_log import MetricsLog
from resnet.optim import losses
from resnet.optim.optimizers import Momentum
from resnet.precision import COMPUTE_DTYPES
from resnet.progress import Progress

StepFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


class TrainState:
    """What a run consists of between two steps.

    Attributes:
        step: Steps done.
        model: The network.
        optimizer: With a velocity for each trainable variable.
    """

    def __init__(self, config: Config) -> None:
        self.step = 0
        self.model = models.build(
            config.model,
            config.num_classes,
            config.image_size,
            config.batch_norm_decay,
            COMPUTE_DTYPES[config.precision],
            config.seed,
        )
        self.optimizer = Momentum(
            self.trainable_variables,
            config.momentum,
            config.weight_decay,
            [decays(name) for name in self.names],
        )

    @property
    def names(self) -> list[str]:
        """Names of the trainable variables, such as `stage1_block1_1/kernel`."""
        return [variable.path for variable in self.model.trainable_variables]

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """What the gradients are for."""
        return [variable.value for variable in self.model.trainable_variables]

    @property
    def batch_norm_averages(self) -> list[tf.Variable]:
        """The moving means and variances, which each rank moves by its own batches."""
        return [variable.value for variable in self.model.non_trainable_variables]

    @property
    def decayed_variables(self) -> list[tf.Variable]:
        """Those of the trainable variables that decay."""
        pairs = zip(self.trainable_variables, self.names, strict=True)
        return [variable for variable, name in pairs if decays(name)]

    def tensors(self) -> dict[str, tf.Variable]:
        """Returns everything that a checkpoint holds, by name."""
        velocities = zip(self.names, self.optimizer.velocities, strict=True)
        return {
            **{f"model/{one.path}": one.value for one in self.model.variables},
            **{f"velocity/{name}": velocity for name, velocity in velocities},
        }

    def assign(self, saved: dict[str, np.ndarray]) -> None:
        """Takes everything over from a checkpoint.

        Raises:
            UserError: If it is that of another network.
        """
        tensors = self.tensors()
        ours = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        theirs = {name: array.shape for name, array in saved.items() if name != "step"}
        if different := sorted(set(ours.items()) ^ set(theirs.items())):
            name = different[0][0]
            raise UserError(
                f"the checkpoint is not one of this {self.model.name}: {name!r} must"
                f" have the shape {ours.get(name)}; there it has {theirs.get(name)}"
            )
        for name, variable in tensors.items():
            variable.assign(saved[name])
        self.step = int(saved["step"])


def decays(name: str) -> bool:
    """Returns whether weight decay is for the variable of that name.

    It is for all but batch normalization's; the classifier's bias does decay.

    Source: tensorflow/tpu, models/official/resnet/resnet_main.py, resnet_model_fn.
    """
    return not name.endswith(("/gamma", "/beta"))


def make_train_step(
    model: keras.Model,
    optimizer: Momentum,
    names: Sequence[str],
    label_smoothing: float,
    communicator: Communicator,
    freeze_batch_norm: bool = False,
) -> StepFunction:
    """Returns `train_step(images, labels, learning_rate)`, compiled into a graph.

    It moves the variables by one step and returns the mean cross-entropy of this rank's
    examples. Each rank must call it as often as the others.

    Args:
        model: The network.
        optimizer: Of the network's trainable variables.
        names: Of those variables, for the exchange of their gradients.
        label_smoothing: As `losses.cross_entropy` takes it.
        communicator: The ranks, whose gradients are averaged.
        freeze_batch_norm: Whether to normalize by the moving averages, which then stay.
    """

    @tf.function
    def train_step(
        images: tf.Tensor, labels: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=not freeze_batch_norm)
            loss = tf.reduce_mean(losses.cross_entropy(logits, labels, label_smoothing))
        gradients = tape.gradient(loss, optimizer.variables)
        gradients = communicator.average_gradients(gradients, names)
        optimizer.apply(gradients, learning_rate)
        return loss

    return train_step


def train(
    config: Config,
    train_share: Share,
    eval_share: Share | None,
    communicator: Communicator,
    num_parallel_calls: int,
) -> None:
    """Trains to `config.train_steps`, from the newest checkpoint if there is one.

    Args:
        config: The run's settings, whose precision is no longer "auto".
        train_share: What to train on.
        eval_share: What to evaluate on, at the end and as the settings say; or None.
        communicator: The ranks.
        num_parallel_calls: Pictures that a rank decodes at the same time.

    Raises:
        FloatingPointError: On all ranks, if the loss is no longer finite.
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
    logging.info(
        "Training for %d steps (%.2f epochs in total). Current step %d.",
        config.train_steps,
        config.epoch(config.train_steps),
        state.step,
    )
    started = time.monotonic()
    input_wait = InputWait()
    with (
        closing(MetricsLog(model_dir, state.step, communicator.rank)) as log,
        closing(Progress(config, state.step, communicator.rank)) as progress,
        closing(record_log),
    ):
        local_losses: list[tf.Tensor] = []
        num_skipped = 0
        while state.step < config.train_steps:
            learning_rate = schedules.gradual_warmup_then_dec(
                state.step,
                config.base_learning_rate,
                config.warmup_steps,
                config.peak_learning_rate,
                config.train_steps,
            )
            with input_wait.waiting():
                batch = next(train_batches)
            examples = train_share.records.number_of_example[batch.examples.numpy()]
            record_log.write(state.step, examples, batch.is_real.numpy())
            num_skipped += int(np.count_nonzero(~batch.is_real.numpy()))
            loss = train_step(
                batch.images, batch.labels, tf.constant(learning_rate, tf.float32)
            )
            local_losses.append(loss)
            state.step += 1
            progress.step_done()
            input_wait.step_done()

            log_is_due = _due(state.step, config.log_step_count_steps, config)
            eval_is_due = evaluator and _due(state.step, config.steps_per_eval, config)
            save_is_due = _due(
                state.step, config.checkpoint_every or _an_epoch(config), config
            )
            if log_is_due or eval_is_due or save_is_due:  # Nothing diverged is saved.
                loss = mean_loss(local_losses, state.step, communicator)
            if log_is_due:
                local_losses.clear()
                loss += losses.weight_penalty(
                    state.decayed_variables, config.weight_decay
                )
                numbers = {
                    "loss": loss,
                    "learning_rate": learning_rate,
                    "images_per_second": progress.show(state.step, loss, learning_rate),
                    "input_wait_share": input_wait.report(communicator),
                }
                if config.on_bad_record == "skip":
                    (total,) = communicator.sum(np.array([num_skipped]))
                    numbers["skipped_records"] = int(total)
                    num_skipped = 0
                log.write("train", state.step, config.epoch(state.step), numbers)
            if evaluator and eval_is_due:
                with progress.paused():
                    average_batch_norm(state, communicator)
                    result = evaluator.evaluate(state.decayed_variables)
                    epoch = config.epoch(state.step)
                    log.write("eval", state.step, epoch, result.as_dict())
                    progress.say(f"step {state.step}: {result}")
            if save_is_due:
                with progress.paused():
                    average_batch_norm(state, communicator)
                    save(state, model_dir, config.keep_checkpoints, communicator)
            if eval_is_due or save_is_due:
                input_wait.paused()
    logging.info(
        "Finished training up to step %d. Elapsed seconds %d.",
        state.step,
        time.monotonic() - started,
    )


def _due(step: int, every: int, config: Config) -> bool:
    """Returns whether what happens every so many steps, and at the end, is due."""
    return step == config.train_steps or (every > 0 and step % every == 0)


def _an_epoch(config: Config) -> int:
    return max(1, int(config.steps_per_epoch))


def mean_loss(
    local_losses: Sequence[tf.Tensor], step: int, communicator: Communicator
) -> float:
    """Returns the mean over steps and ranks.

    Raises:
        FloatingPointError: On all ranks, if it is not finite.
    """
    local = np.array([np.mean([float(loss) for loss in local_losses])])
    mean = float(communicator.sum(local)[0]) / communicator.num_ranks
    if not np.isfinite(mean):
        raise FloatingPointError(
            f"the loss is {mean} in the steps up to {step}: the training has diverged."
            " Lower --peak_learning_rate or lengthen the warm-up."
        )
    return mean


def average_batch_norm(state: TrainState, communicator: Communicator) -> None:
    """Gives all ranks the mean of their moving averages.

    Each rank moves its own; without this, rank 0's would be evaluated and saved.
    """
    communicator.average_variables(state.batch_norm_averages)


def restore_newest(
    state: TrainState, model_dir: Path, communicator: Communicator
) -> None:
    """Takes over the newest checkpoint, if there is one, read by rank 0 for all.

    All ranks then have the same weights, also of a new run.
    """
    with communicator.together():
        if communicator.rank == 0 and (steps := checkpoints.saved_steps(model_dir)):
            state.assign(checkpoints.load(model_dir, steps[-1]))
    state.step = communicator.broadcast(state.step)
    communicator.broadcast_variables(list(state.tensors().values()))


def save(
    state: TrainState, model_dir: Path, keep: int, communicator: Communicator
) -> None:
    """Saves a checkpoint on rank 0; the other ranks wait for it.

    Raises:
        UserError: On all ranks, if it can't be written.
    """
    with communicator.together():
        if communicator.rank == 0:
            try:
                checkpoints.save(model_dir, state.step, state.tensors(), keep)
            except (OSError, tf.errors.OpError) as error:
                raise UserError(
                    f"the checkpoint of step {state.step} can't be written: {error}"
                ) from error
