"""The training program, with a loss that counts the updates of each example.

Its data set has one example of each class. The gradient by the classifier's bias is 1
for the classes of a batch and 0 for the others, and that by all other weights is 0. So
with a learning rate of 1 and neither momentum nor weight decay, the bias of a class is
its initial value minus the number of updates in which its example was used.
"""

import sys
from typing import Any

from resnet import resnet_main
from resnet.base import program
from resnet.runtime import startup


def count_examples(model: Any, batch: Any, phase: Any, _: Any) -> Any:
    import tensorflow as tf

    from resnet.training.train_step import mean_loss

    bias = model.trainable_variables[-1].value
    others = 0.0 * mean_loss(model, batch, phase)
    return tf.reduce_sum(tf.gather(bias, batch.labels)) + others


def patch() -> None:
    """Replaces the loss once TensorFlow has started."""
    start = startup.start_tensorflow

    def start_and_patch(communicator: Any) -> None:
        start(communicator)
        from resnet.training.parameter_servers import worker_step

        worker_step.mean_loss = count_examples  # type: ignore[assignment]

    startup.start_tensorflow = start_and_patch


patch()
sys.exit(program.run(resnet_main.main))
