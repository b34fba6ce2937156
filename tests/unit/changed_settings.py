"""Other settings of a run that is there, without a recipe."""

import dataclasses
from typing import Any

from resnet.config.config import Config
from resnet.config.phases import Phase


def _names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def changed(config: Config, **changes: Any) -> Config:
    """Returns the settings with fields of `Config`, and of all its phases, replaced.

    `train_steps` is the length of the one phase.
    """
    if "train_steps" in changes:
        (_,) = config.phases
        changes["num_steps"] = changes.pop("train_steps")
    of_run, of_phase = (
        {name: value for name, value in changes.items() if name in names}
        for names in map(_names, (Config, Phase))
    )
    assert set(of_run) | set(of_phase) == set(changes)
    phases = [
        dataclasses.replace(phase, **of_phase)
        for phase in of_run.pop("phases", config.phases)
    ]
    return dataclasses.replace(config, phases=tuple(phases), **of_run)
