"""The end of a round of local SGD: the ranks average what each has trained by itself.

Sources: Lin et al. 2018, arXiv:1808.07217 (post-local SGD, whose velocities stay each
rank's own); Wang et al. 2019, arXiv:1910.00643 (SlowMo, where they are kept, averaged
or reset, and the means get an outer momentum); Sarfi et al. 2025, arXiv:2508.15706
(SparseLoCo, where the changes of the weights are compressed, with error feedback).
"""

import math
import operator
import time

import tensorflow as tf

from resnet.config import phases, rounds
from resnet.config.phases import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange
from resnet.exchange.gradients import GradientExchange
from resnet.optim.train_state import TrainState
from resnet.training.train_step import update_ema


class Synchronization:
    """Averages the ranks' weights, and what else their phase asks for.

    After it, all ranks have the same weights and the same moving averages of batch
    normalization, and the EMA has moved towards these as it would have in as many
    steps with these weights. With compression they are

        weights = start - mean over ranks of what is sent of (start - own weights)

    where `start` are the weights that the round began with, and what isn't sent stays
    in the residuals of the exchange; the moving averages remain each rank's own.
    """

    def __init__(
        self, state: TrainState, communicator: Communicator, exchange: GradientExchange
    ) -> None:
        self._state = state
        self._communicator = communicator
        self._exchange = exchange
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
        rate = tf.constant(phases.learning_rate(run.phases, last), tf.float32)
        decay = tf.constant(math.prod(decays), tf.float32)
        step = tf.constant(last, tf.int64)
        numbers = StepSettings(rate, 0.0, 0.0, 0.0, decay, step)
        phase = phases.index_of(run.phases, last)
        sent = self._average(phase, self._velocities(last), numbers).numpy().tolist()
        self._is_traced = True
        seconds = account.exposed_seconds + time.perf_counter() - begin
        return ExchangeAccount(*sent)._replace(exposed_seconds=seconds)

    def _velocities(self, step: int) -> str:
        """Returns what the end of the round of a step does to the velocities.

        Where the ranks go on to exchange gradients, they need the same velocities.
        """
        run = self._state.config
        chosen = phases.at(run.phases, step).local_velocities
        if chosen == "keep" and not phases.at(run.phases, step + 1).is_local:
            return "average"
        return chosen

    def _means(
        self, velocities: str, numbers: StepSettings
    ) -> tuple[list[tf.Variable], list[tf.Tensor], ExchangeAccount]:
        """Returns the variables to average, the weights first, their means and cost."""
        state, variables = self._state, self._state.trainable_variables
        if state.outer is not None and state.config.compress != "none":
            starts = [start.read_value() for start in state.outer.starts]
            changes = list(map(operator.sub, starts, variables))
            means, account = self._exchange.mean_of_gradients(changes, numbers)
            return variables, list(map(operator.sub, starts, means)), account
        variables += state.batch_norm_averages
        if velocities == "average":
            variables += state.optimizer.velocities.values()
        means = self._communicator.collectives.allreduce_mean(
            [variable.read_value() for variable in variables],
            [f"synchronized/{number}" for number in range(len(variables))],
        )
        num_values = sum(variable.shape.num_elements() for variable in variables)
        traffic = Traffic.of_allreduce(num_values, self._communicator.num_ranks)
        return variables, means, measure_exchange(traffic, [], [])

    def _average_in_graph(
        self, phase: int, velocities: str, numbers: StepSettings
    ) -> tf.Tensor:
        """Averages; `phase`, an index, and `velocities` are constants."""
        state, settings = self._state, self._state.config.phases[phase]
        variables, means, account = self._means(velocities, numbers)
        factors = phases.factors_of(settings.layer_rates, state.names)
        # A mean of equal weights may differ from them in its last bit.
        frozen = {number for number, factor in enumerate(factors) if factor == 0}
        if state.outer is not None:
            count = len(state.trainable_variables)
            rate = numbers.learning_rate
            means[:count] = state.outer.apply(means[:count], settings, rate, frozen)
        for number, (variable, mean) in enumerate(zip(variables, means, strict=True)):
            if number not in frozen:
                variable.assign(mean)
        if velocities == "reset":
            state.optimizer.reset()
        update_ema(state.ema, state.model.variables, numbers.ema_decay)
        return tf.stack(account)
