"""Settings that change with the step: each a pure function of the step."""


def gradual_warmup_then_dec(
    step: int,
    base_learning_rate: float,
    warmup_steps: int,
    peak_learning_rate: float,
    train_steps: int,
) -> float:
    """Returns the learning rate of one step.

    The rate rises in a straight line from `base_learning_rate` at step 0 to
    `peak_learning_rate` at `warmup_steps`, then falls in a straight line to 0 at
    `train_steps`; past the end it stays 0.

    Args:
        step: Global step, from 0; one step is one global batch.
        base_learning_rate: Rate of step 0.
        warmup_steps: Length of the warm-up in steps; 0 for none.
        peak_learning_rate: Rate after the warm-up, already scaled to the batch.
        train_steps: Length of the training in steps, more than `warmup_steps`.

    Source: "ResNet-50 on 256 Xeon nodes with TensorFlow and Horovod" (SURFsara, Intel,
    Dell, 2018), the function of this name; its decay is a polynomial of power 1.
    """
    if step < warmup_steps:
        rise = peak_learning_rate - base_learning_rate
        return base_learning_rate + rise * step / warmup_steps
    left = max(train_steps - step, 0)
    return peak_learning_rate * left / (train_steps - warmup_steps)
