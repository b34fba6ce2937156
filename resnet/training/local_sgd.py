"""The end of a round of local SGD: the ranks average what each has trained by itself.

Sources: Lin et al. 2018, arXiv:1808.07217 (post-local SGD, whose velocities stay each
rank's own); Wang et al. 2019, arXiv:1910.00643 (SlowMo, where they are kept, averaged
or reset, and the means get an outer momentum).
"""

import math
import time

import tensorflow as tf

from resnet.config import phases, rounds
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount, Traffic
from resnet.optim.train_state import TrainState
from resnet.training.train_step import update_ema


class Synchronization:
    """Averages the ranks' weights, and what else their phase asks for.

    After it, all ranks have the same weights and the same moving averages of batch
    normalization, and the EMA has moved towards these as it would have in as many
    steps with these weights.
    """

    def __init__(self, state: TrainState, communicator: Communicator) -> None:
        self._state = state
        self._communicator = communicator
        self._is_traced = False
        self._average = tf.function(self._average_in_graph, autograph=False)

    def __call__(self, account: ExchangeAccount) -> ExchangeAccount:
        """Averages, if the last step done ends a round; returns the cost with this.

        To be called on all ranks.
        """
        state, run = self._state, self._state.config
        last = state.step - 1
        if not (state.is_synchronized and phases.at(run.phases, last).is_local):
            return account
        begin = time.perf_counter()
        self._communicator.report_status(
            f"averaging the weights after step {state.step}",
            is_timed=self._is_traced,
            waits_for_others=True,
        )
        decays = [run.ema_decay_at(step) for step in rounds.of_step(run.phases, last)]
        rate = phases.learning_rate(run.phases, last)
        velocities = self._velocities(last)
        self._average(
            phases.index_of(run.phases, last),
            tf.constant(rate, tf.float32),
            tf.constant(math.prod(decays), tf.float32),
            velocities,
        )
        self._is_traced = True
        averaged = self._averaged(velocities)
        num_values = sum(variable.shape.num_elements() for variable in averaged)
        traffic = Traffic.of_allreduce(num_values, self._communicator.num_ranks)
        return account._replace(
            message_bytes=account.message_bytes + traffic.message_bytes,
            bytes_sent=account.bytes_sent + traffic.bytes_sent,
            exposed_seconds=account.exposed_seconds + time.perf_counter() - begin,
        )

    def _velocities(self, step: int) -> str:
        """Returns what the end of the round of a step does to the velocities.

        Where the ranks go on to exchange gradients, they need the same velocities.
        """
        run = self._state.config
        chosen = phases.at(run.phases, step).local_velocities
        if chosen == "keep" and not phases.at(run.phases, step + 1).is_local:
            return "average"
        return chosen

    def _averaged(self, velocities: str) -> list[tf.Variable]:
        """Returns the variables that are averaged, the weights first."""
        state = self._state
        variables = [*state.trainable_variables, *state.batch_norm_averages]
        if velocities == "average":
            variables += state.optimizer.velocities.values()
        return variables

    def _average_in_graph(
        self, phase: int, rate: tf.Tensor, ema_decay: tf.Tensor, velocities: str
    ) -> None:
        """Averages; the index of the phase and `velocities` are constants."""
        state = self._state
        variables = self._averaged(velocities)
        means = self._communicator.collectives.allreduce_mean(
            [variable.read_value() for variable in variables],
            [f"synchronized/{number}" for number in range(len(variables))],
        )
        settings = state.config.phases[phase]
        factors = phases.factors_of(settings.layer_rates, state.names)
        # A mean of equal weights may differ from them in its last bit.
        frozen = {number for number, factor in enumerate(factors) if factor == 0}
        if settings.outer_momentum and state.outer is not None:
            count = len(state.trainable_variables)
            means[:count] = state.outer.apply(means[:count], settings, rate, frozen)
        for number, (variable, mean) in enumerate(zip(variables, means, strict=True)):
            if number not in frozen:
                variable.assign(mean)
        if velocities == "reset":
            for velocity in state.optimizer.velocities.values():
                velocity.assign(tf.zeros_like(velocity))
        update_ema(state.ema, state.model.variables, ema_decay)
