"""An optimizer of variables without a network, and the settings of its steps."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.optim.optimizer import Optimizer

WAYS = ("compiled", "stock")  # The ops of this project, and TensorFlow's.


def make(
    kind: str,
    variables: Sequence[tf.Variable],
    decays: Sequence[bool],
    nesterov: bool | None = None,
    **constants: Any,
) -> Optimizer:
    """Returns the optimizer of a name, with weight decay for some of the variables.

    Nesterov's update is the default where the published optimizer has it.
    """
    config = TrainingSettings(
        model="mlp",
        image_size=28,
        global_batch_size=1,
        optimizer=kind,
        nesterov=kind not in ("lars", "adamw") if nesterov is None else nesterov,
        **constants,
    )
    named = {f"layer{place}/kernel": one for place, one in enumerate(variables)}
    optimizer = Optimizer(named, config)
    optimizer.decays = list(decays)
    return optimizer


def applying(optimizer: Optimizer, way: str, in_graph: bool) -> Callable[..., int]:
    """Returns the update with the ops of one of `WAYS`."""

    def apply(*arguments: Any) -> int:
        if way == "compiled":
            return optimizer.apply(*arguments)
        with native.disabled():
            return optimizer.apply(*arguments)

    return tf.function(apply, autograph=False) if in_graph else apply


def slots(optimizer: Optimizer, kind: str = "velocity") -> list[tf.Variable]:
    """Returns the slots of a kind in the order of the variables."""
    return [optimizer.slots[f"{kind}/{name}"] for name in optimizer.variables]


def settings(
    rate: float,
    momentum: float,
    weight_decay: float,
    nesterov_momentum: float | None = None,
) -> StepSettings:
    """Returns the hyperparameters of a step, as its graph has them."""
    nesterov_momentum = momentum if nesterov_momentum is None else nesterov_momentum
    return StepSettings(
        tf.constant(rate, tf.float32),
        tf.constant(momentum, tf.float32),
        tf.constant(nesterov_momentum, tf.float32),
        weight_decay,
    )
