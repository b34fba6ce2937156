"""The optimizers by their names: a row for each module of `resnet.optim` with a rule.

It imports no TensorFlow, since settings and plans read it.
"""

from typing import NamedTuple


class OptimizerRow(NamedTuple):
    """What is known of an optimizer without its formula.

    Attributes:
        module: The module with its `RULE`.
        description: What --explain calls it, with the names of settings in braces.
        is_decoupled: Whether the weight decay acts on the variables directly. It isn't
            the gradient of a term of the loss then.
    """

    module: str
    description: str
    is_decoupled: bool = False


OPTIMIZERS = {
    "momentum": OptimizerRow("resnet.optim.momentum", "momentum"),
    "sgdw": OptimizerRow(
        "resnet.optim.sgdw", "momentum and decoupled weight decay (SGDW)", True
    ),
    "adamw": OptimizerRow(
        "resnet.optim.adamw",
        "AdamW (beta2 {adam_beta2:g}, epsilon {adam_epsilon:g}), momentum",
        True,
    ),
    "lars": OptimizerRow(
        "resnet.optim.lars", "LARS, trust coefficient {trust_coefficient:g}, momentum"
    ),
    "muon": OptimizerRow(
        "resnet.optim.muon",
        "Muon for convolutions (momentum {muon_momentum:g}), momentum",
    ),
}
