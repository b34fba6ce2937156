"""The optimizer of a run: its rule, applied to groups of variables, and its state."""

import importlib
from collections.abc import Mapping, Sequence

import tensorflow as tf

from resnet.config.optimizers import OPTIMIZERS
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.distributed.collectives import Collectives
from resnet.optim.groups import Group, Rule


class Optimizer:
    """Updates trainable variables by the rule that the settings name.

    Attributes:
        variables: The variables by their names, in the order of the gradients.
        decays: Whether weight decay applies to each variable.
        slots: The state, float32, by its stored names such as `velocity/stem/kernel`.
    """

    def __init__(
        self, variables: Mapping[str, tf.Variable], config: TrainingSettings
    ) -> None:
        """Makes the state, which is zero before the first step.

        Args:
            config: The settings, which name the rule and have its constants.
        """
        self.variables = dict(variables)
        self._config = config
        self._rule = rule_of(config.optimizer)
        self.decays = [
            has_weight_decay(name, variable.shape, config)
            for name, variable in variables.items()
        ]
        self.slots = self._rule.make_slots(variables)

    @property
    def velocities(self) -> dict[str, tf.Variable]:
        """The slots that are velocities, by their stored names."""
        return {
            name: slot
            for name, slot in self.slots.items()
            if name.startswith("velocity/")
        }

    @property
    def decayed_variables(self) -> list[tf.Variable]:
        """The variables that weight decay applies to."""
        pairs = zip(self.variables.values(), self.decays, strict=True)
        return [variable for variable, decays in pairs if decays]

    def reset(self) -> None:
        """Sets the state to zero."""
        for slot in self.slots.values():
            slot.assign(tf.zeros_like(slot))

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        settings: StepSettings,
        rate_factors: Sequence[float] = (),
        collectives: Collectives | None = None,
    ) -> int:
        """Updates the variables by one step; to be called inside the graph.

        Args:
            rate_factors: The factor of each variable's learning rate, where variables
                of factor 0, and their state, stay as they are; empty for 1.
            collectives: The ranks that have the same state; None if no other rank has.

        Returns:
            The bytes that this rank sends to others for it.

        Raises:
            ValueError: If there isn't one gradient and one factor for each variable.
        """
        if len(gradients) != len(self.variables):
            raise ValueError(
                f"{len(gradients)} gradients, {len(self.variables)} needed"
            )
        return sum(
            rule.update(group, [gradients[place] for place in group.places], settings)
            for rule, group in self._groups(rate_factors, collectives)
        )

    def _groups(
        self, rate_factors: Sequence[float], collectives: Collectives | None
    ) -> list[tuple[Rule, Group]]:
        """Returns the groups of variables that are trained, each with its rule."""
        factors = rate_factors or [1.0] * len(self.variables)
        places: dict[tuple[Rule, float], list[int]] = {}
        for place, (variable, factor) in enumerate(
            zip(self.variables.values(), factors, strict=True)
        ):
            is_taken = self._rule.takes(variable.shape)
            rule = self._rule if is_taken else rule_of("momentum")
            if factor:
                places.setdefault((rule, factor), []).append(place)
        names = list(self.variables)
        return [
            (
                rule,
                Group(
                    places=of_group,
                    names=[names[place] for place in of_group],
                    variables=[self.variables[names[place]] for place in of_group],
                    decays=[self.decays[place] for place in of_group],
                    rate_factor=factor,
                    slots=self.slots,
                    config=self._config,
                    collectives=collectives,
                ),
            )
            for (rule, factor), of_group in places.items()
        ]


def rule_of(name: str) -> Rule:
    """Returns the rule of an optimizer by its name in the settings."""
    rule: Rule = importlib.import_module(OPTIMIZERS[name].module).RULE
    return rule


def has_weight_decay(name: str, shape: Sequence[int], config: TrainingSettings) -> bool:
    """Returns whether weight decay applies to a trainable variable in a run.

    It applies to all variables except BatchNorm's, so also to the classifier's bias;
    with `decay_batch_norm` to BatchNorm's too. The rules of some optimizers exclude
    more.

    Source: tensorflow/tpu, models/official/resnet/resnet_main.py, resnet_model_fn.
    """
    is_of_batch_norm = name.endswith(("/gamma", "/beta"))
    return (config.decay_batch_norm or not is_of_batch_norm) and rule_of(
        config.optimizer
    ).decays(name, shape)
