"""What a codec is, and what it is given."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.config.phases import StepSettings


class Context(NamedTuple):
    """What a codec may use beside the values of a vector, `[n]` float32.

    Attributes:
        settings, shape: The settings of compression, and the shape of the gradient.
        stream: `[4]` int64, what random numbers depend on: the seed of the run, the
            number of the vector among those of a step, the step, and the rank.
        ratio: Fraction of the values to keep, for methods that keep some: a number, or
            a float64 scalar.
        state: The state of the codec for this vector; None if it has none.
        mean: Returns the mean over ranks of a dense float32 tensor, given a part of its
            name, which is another one for each tensor of a vector.
    """

    settings: CompressionSettings
    shape: Sequence[int]
    stream: tf.Tensor
    ratio: Any
    state: tf.Variable | None
    mean: Callable[[tf.Tensor, str], tf.Tensor]


class Residuals:
    """Error feedback: what a rank has not sent of its vectors it sends in later steps.

    Without error feedback, nothing is kept. Vectors and residuals are gradients without
    the learning rate, unlike in algorithm 1 of the source: what is sent later counts
    with the rate of that later step.

    `rank_variables` is the state of this rank, by its stored name.

    Source: Karimireddy et al. 2019, arXiv:1901.09847.
    """

    def __init__(
        self,
        settings: CompressionSettings,
        shapes: Mapping[str, Sequence[int]],
        num_ranks: int,  # For a subclass.
    ) -> None:
        """Creates the residuals of vectors, by the shapes of their gradients: zeros."""
        self._settings = settings
        self._residuals: list[tf.Variable] = []
        if settings.keeps_residuals:
            sizes = map(math.prod, shapes.values())
            self._residuals = [tf.Variable(tf.zeros([size])) for size in sizes]
        pairs = zip(shapes, self._residuals, strict=False)
        self.rank_variables = {f"residual/{name}": value for name, value in pairs}

    def to_send(
        self, gradients: Sequence[tf.Tensor], step: StepSettings
    ) -> list[tf.Tensor]:
        """Returns the vectors that this rank compresses, `[n]` float32 each."""
        del step
        vectors = self._flat(gradients)
        if not self._residuals:
            return vectors
        pairs = zip(vectors, self._residuals, strict=True)
        decay = self._settings.residual_decay
        return [vector + decay * residual for vector, residual in pairs]

    def keep(self, vectors: Sequence[tf.Tensor], left: Sequence[tf.Tensor]) -> None:
        """Keeps what was not sent of the vectors."""
        del vectors
        if self._residuals:
            for residual, rest in zip(self._residuals, left, strict=True):
                residual.assign(rest)

    def ratio_at(self, step: tf.Tensor) -> Any:
        """Returns the fraction of the values to keep in a step (`Context.ratio`)."""
        del step
        return self._settings.ratio

    def _flat(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients as vectors (`compression.vectors`)."""
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        is_one = self._settings.compress == "entiremodel"
        return [tf.concat(flat, axis=0)] if is_one else flat


class Codec(NamedTuple):
    """A method of compression; it has either `encode` or `average`.

    Attributes:
        encode: Returns the message of a vector, uint8 (`messages`), and what the
            message lacks, `[n]` float32.
        average: Returns the mean over ranks of what they send of a vector, `[n]`
            float32 and the same on all ranks, and what this rank has not sent of it.
        alignment: Returns the number of values at whose multiples messages can be cut,
            given the length of the longest vector.
        state: Returns what `average` keeps of a vector, if anything, the same on all
            ranks, given its name, the shape of its gradient, and two numbers as a seed.
        memory: What a rank keeps of its vectors from step to step.
    """

    encode: Callable[[tf.Tensor, Context], tuple[tf.Tensor, tf.Tensor]] | None = None
    average: Callable[[tf.Tensor, Context], tuple[tf.Tensor, tf.Tensor]] | None = None
    alignment: Callable[[CompressionSettings, int], int] = lambda _, __: 1
    state: Callable[
        [CompressionSettings, str, Sequence[int], Sequence[int]], tf.Variable | None
    ] = lambda *_: None
    memory: type[Residuals] = Residuals
