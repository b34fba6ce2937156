"""The optimizer of a run: its rule, applied to groups of variables, and its state."""

import importlib
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.optimizers import OPTIMIZERS
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.distributed.collectives import Collectives
from resnet.optim.groups import Group, Rule


class Optimizer:
    """Updates trainable variables by the rule that the settings name.

    The `variables` have their names, and are in the order of the gradients; `decays` is
    whether weight decay applies to each. The network computes in `dtype`. `slots` are
    the state, float32, by its stored names such as `velocity/stem/kernel`; zeros before
    the first step.
    """

    def __init__(
        self,
        variables: Mapping[str, tf.Variable],
        config: TrainingSettings,
        dtype: tf.DType = tf.float32,
    ) -> None:
        self.variables = dict(variables)
        self._config, self._dtype = config, dtype
        self._rule = _rule_of(config.optimizer)
        self.decays = [
            has_weight_decay(name, variable.shape, config)
            for name, variable in variables.items()
        ]
        self.slots = self._rule.make_slots(variables)

    @property
    def velocities(self) -> dict[str, tf.Variable]:
        """The slots that are velocities, by their stored names."""
        slots = self.slots.items()
        return {name: slot for name, slot in slots if name.startswith("velocity/")}

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

        Variables of a factor 0 of the learning rate, and their state, stay as they are;
        without factors, all are 1. `collectives` are the ranks that have the same
        state, if any; returned are the bytes that this rank sends to others.
        """
        names = list(self.variables)
        places: dict[tuple[Rule, float], list[int]] = {}
        for place, (variable, factor, _) in enumerate(
            zip(
                self.variables.values(),
                rate_factors or [1.0] * len(names),
                gradients,
                strict=True,
            )
        ):
            is_taken = self._rule.takes(variable.shape)
            rule = self._rule if is_taken else _rule_of("momentum")
            if factor:
                places.setdefault((rule, factor), []).append(place)
        bytes_sent = 0
        for (rule, factor), of_group in places.items():
            group = Group(
                places=of_group,
                names=[names[place] for place in of_group],
                variables=[self.variables[names[place]] for place in of_group],
                decays=[self.decays[place] for place in of_group],
                rate_factor=factor,
                slots=self.slots,
                config=self._config,
                dtype=self._dtype,
                collectives=collectives,
            )
            of_rule = [gradients[place] for place in of_group]
            bytes_sent += rule.update(group, of_rule, settings)
        return bytes_sent


def _rule_of(name: str) -> Rule:
    rule: Rule = importlib.import_module(OPTIMIZERS[name].module).RULE
    return rule


def has_weight_decay(name: str, shape: Sequence[int], config: TrainingSettings) -> bool:
    """Returns whether weight decay applies to a trainable variable in a run.

    It applies to all variables except BatchNorm's, so also to the classifier's bias;
    with `decay_batch_norm` to BatchNorm's too. The rules of some optimizers exclude
    more.

    Source: tensorflow/tpu, models/official/resnet/resnet_main.py, resnet_model_fn.
    """
    if name.endswith(("/gamma", "/beta")) and not config.decay_batch_norm:
        return False
    return _rule_of(config.optimizer).decays(name, shape)


def weight_penalty(model: keras.Model, config: Config, step: int) -> float:
    """Returns the weight-decay term of the loss after some steps of a run.

    It is the weight decay times half the sum of the squares of all weights that decay.
    The published runs include it in the loss that they print. If the last of the steps
    ended a phase, the weight decay is still that of this phase.
    """
    if OPTIMIZERS[config.optimizer].is_decoupled:
        return 0.0
    decay = phases.at(config.phases, max(step - 1, 0)).weight_decay
    return decay * sum(
        float(tf.nn.l2_loss(variable.value))
        for variable in model.trainable_variables
        if has_weight_decay(variable.path, variable.shape, config)
    )
