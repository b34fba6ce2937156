"""From averaged gradients to new weights."""

from collections.abc import Sequence

import tensorflow as tf

from resnet import native


class Momentum:
    """Gradient descent with Nesterov's momentum; the velocity has no learning rate.

    velocity = momentum * velocity + gradient
    variable = variable - learning_rate * (gradient + momentum * velocity)

    where the gradient has `weight_decay` times the variable added to it first, on the
    variables that decay.

    Attributes:
        velocities: One for each variable, float32, zeros at first.

    Source: TensorFlow 1's MomentumOptimizer with use_nesterov, as in the TPU recipe;
    Sutskever et al. 2013, "On the importance of initialization and momentum".
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        momentum: float,
        weight_decay: float,
        decays: Sequence[bool],
    ) -> None:
        """Makes the velocities.

        Args:
            variables: What is trained.
            momentum: In [0, 1).
            weight_decay: Not below 0.
            decays: For each variable, whether weight decay is for it.
        """
        self.variables = list(variables)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decays = list(decays)
        self.velocities = [tf.Variable(tf.zeros_like(one)) for one in variables]

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """Moves the variables by one step; to be called inside the graph."""
        library = native.ops()
        if library is None:
            self.apply_with_stock_ops(gradients, learning_rate)
            return
        library.resnet_momentum(
            variables=[variable.handle for variable in self.variables],
            velocities=[velocity.handle for velocity in self.velocities],
            gradients=gradients,
            learning_rate=learning_rate,
            momentum=self.momentum,
            weight_decays=[self.weight_decay * decays for decays in self.decays],
        )

    def apply_with_stock_ops(
        self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor
    ) -> None:
        """Does what `apply` does, with TensorFlow's own ops."""
        for variable, velocity, gradient, decays in zip(
            self.variables, self.velocities, gradients, self.decays, strict=True
        ):
            if decays and self.weight_decay:
                gradient = gradient + self.weight_decay * variable
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=velocity.handle,
                lr=learning_rate,
                grad=gradient,
                momentum=self.momentum,
                use_nesterov=True,
            )
