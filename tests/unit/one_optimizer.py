"""An optimizer of variables without a network, and its twin in NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.optim.optimizer import Optimizer

WAYS = ("compiled", "stock")  # The ops of this project, and TensorFlow's.


def config_of(kind: str, nesterov: bool, **constants: Any) -> TrainingSettings:
    sizes = {"model": "mlp", "image_size": 28, "global_batch_size": 1}
    return TrainingSettings(optimizer=kind, nesterov=nesterov, **sizes, **constants)


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
    has_nesterov = kind not in ("lars", "adamw") if nesterov is None else nesterov
    named = {f"layer{place}/kernel": one for place, one in enumerate(variables)}
    optimizer = Optimizer(named, config_of(kind, has_nesterov, **constants))
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


def settings(
    rate: float, momentum: float, decay: float, nesterov_momentum: float | None = None
) -> StepSettings:
    """Returns the hyperparameters of a step, as its graph has them."""
    nesterov_momentum = momentum if nesterov_momentum is None else nesterov_momentum
    rates = (rate, momentum, nesterov_momentum)
    return StepSettings(*(tf.constant(one, tf.float32) for one in rates), decay)


def slow_orthogonalized(matrix: np.ndarray) -> np.ndarray:
    """Applies Muon's polynomial to the singular values themselves."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / (np.sqrt(np.sum(values**2)) + 1e-7)
    for _ in range(3):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


class Twin:
    """A variable and its optimizer in float64, by the formulas of the papers."""

    def __init__(self, weights: np.ndarray, decays: bool, config: TrainingSettings):
        self.weights = weights.astype(np.float64)
        self.velocity = np.zeros_like(self.weights)
        self.square = np.zeros_like(self.weights)
        self._corrections = [0.0, 0.0]
        self._decays = decays
        self._config = config

    def step(
        self,
        gradient: np.ndarray,
        rate: float,
        momentum: float,
        decay: float,
        nesterov_momentum: float,
    ) -> None:
        kind, config = self._config.optimizer, self._config
        is_kernel = kind == "muon" and self.weights.ndim == 4
        decay *= self._decays and not is_kernel
        if kind in ("sgdw", "adamw"):
            self.weights = self.weights * (1 - rate * decay)
            decay = 0.0
        if kind == "adamw":
            self._adamw(gradient, rate, nesterov_momentum)
            return
        total = gradient + decay * self.weights
        if kind == "lars" and self._decays:
            norm, of_gradient = np.linalg.norm(self.weights), np.linalg.norm(gradient)
            trust = config.trust_coefficient * norm / (of_gradient + decay * norm)
            total = trust * total
        if is_kernel:
            momentum = nesterov_momentum = config.muon_momentum
        self.velocity = momentum * self.velocity + total
        step = self.velocity
        if config.nesterov:
            step = total + nesterov_momentum * self.velocity
        if is_kernel:
            filters = self.weights.shape[-1]
            self.weights *= np.sqrt(filters) / np.linalg.norm(self.weights)
            matrix = slow_orthogonalized(step.reshape(-1, filters))
            step = matrix.reshape(step.shape)
        self.weights = self.weights - rate * step

    def _adamw(self, gradient: np.ndarray, rate: float, momentum: float) -> None:
        """The momentum may change, so the corrections are not 1 - momentum^t."""
        config, gradient = self._config, gradient.astype(np.float64)
        self.velocity = momentum * self.velocity + (1 - momentum) * gradient
        beta2 = config.adam_beta2
        self.square = beta2 * self.square + (1 - beta2) * gradient**2
        first, second = self._corrections
        first = momentum * first + 1 - momentum
        second = beta2 * second + 1 - beta2
        self._corrections = [first, second]
        mean = self.velocity / first
        if config.nesterov:
            mean = momentum * self.velocity + (1 - momentum) * gradient
            mean = mean / (momentum * first + 1 - momentum)
        size = np.sqrt(self.square / second) + config.adam_epsilon
        self.weights = self.weights - rate * mean / size
