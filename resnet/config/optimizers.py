"""The optimizers by their names: a row for each rule in `resnet.optim`."""

from typing import NamedTuple


class OptimizerRow(NamedTuple):
    """What is known of an optimizer without its formula."""

    module: str  # The module with its `RULE`.
    description: str  # What --explain calls it, with the names of settings in braces.
    is_decoupled: bool = False  # Whether the decay acts on variables, not in the loss.
    note: str = ""  # What --explain says below the momentum and decay of phases.


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
        "Muon for convolutions, for all else momentum",
        note="The weights of convolutions have Muon's momentum, {muon_momentum:g}, and"
        " don't decay.",
    ),
}
