"""The hyperparameters of one training step, a pure function of settings and step."""

from typing import Any, NamedTuple

from resnet.config import phases
from resnet.config.config import Config


class StepSettings(NamedTuple):
    """The hyperparameters of one step.

    They are Python numbers; inside the graph of a step, all except `weight_decay` and
    `decay_is_scaled` are scalar tensors, float32 unless it says otherwise.

    Attributes:
        learning_rate: Learning rate for the mean gradient of the global batch.
        velocity_factor: Factor of the previous velocity: the momentum, with Caffe-style
            momentum times a ratio of learning rates (`phases.velocity_factor`).
        nesterov_momentum: Momentum of the phase, the factor of the new velocity in
            Nesterov's update.
        weight_decay: Factor of a variable that is added to its gradient.
        ema_decay: Decay of the moving average of the weights; 0 without one.
        step: Number of the step, from 0; an int64 scalar tensor inside the graph.
        decay_is_scaled: Whether the factors of layers' learning rates multiply the part
            of the weight decay in an update, too.
    """

    learning_rate: Any
    velocity_factor: Any
    nesterov_momentum: Any
    weight_decay: float
    ema_decay: Any = 0.0
    step: Any = 0
    decay_is_scaled: bool = True


def at(config: Config, step: int) -> StepSettings:
    """Returns the hyperparameters of one step of a run, from 0."""
    phase = phases.at(config.phases, step)
    return StepSettings(
        learning_rate=phases.learning_rate(config.phases, step),
        velocity_factor=phases.velocity_factor(
            config.phases, step, config.learning_rate_in_velocity
        ),
        nesterov_momentum=phase.momentum,
        weight_decay=phase.weight_decay,
        ema_decay=ema_decay(config, step),
        step=step,
        decay_is_scaled=phase.layer_rates_scale_decay,
    )


def velocity_factor_of_part(
    settings: StepSettings, number: int, num_workers: int
) -> Any:
    """Returns the factor of the velocity in the update by a part of a batch.

    In asynchronous training, each part of a global batch updates the weights. The ratio
    of learning rates belongs to the first one, since the rate changes once per step.

    Args:
        settings: The hyperparameters of the step.
        number: The number of the part, counted from the start of the run.
        num_workers: The number of parts of a global batch.
    """
    is_first = number % num_workers == 0
    return settings.velocity_factor if is_first else settings.nesterov_momentum


def ema_decay(config: Config, step: int) -> float:
    """Returns the decay of the moving average of the weights in one step.

    It is lower in the first steps of a run, so that the average soon forgets the
    initial weights: min(decay, (1 + n) / (10 + n)) after n steps.

    Source: TensorFlow 1's ExponentialMovingAverage with num_updates.
    """
    done = step - phases.first_step(config.phases, config.first_phase)
    return min(config.ema_decay, (1 + done) / (10 + done))
