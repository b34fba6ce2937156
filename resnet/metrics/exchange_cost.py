"""Measures what the exchange of gradients costs between two log lines."""

import math

from absl import logging

from resnet.exchange.account import ExchangeAccount


class ExchangeCost:
    """Averages the accounts of this rank's exchanges over steps."""

    def __init__(self, is_compressed: bool, rank: int) -> None:
        """Begins without a step.

        Args:
            is_compressed: Whether the gradients are compressed.
            rank: Rank of this process; rank 0 logs once if messages are dense.
        """
        self._is_compressed = is_compressed
        self._logs_dense = rank == 0
        self._accounts: list[ExchangeAccount] = []
        self._exposed_seconds = 0.0
        self._step_seconds = 0.0

    def step_done(self, account: ExchangeAccount, seconds: float | None) -> None:
        """Counts a step.

        Args:
            account: What its exchange cost.
            seconds: Duration of the step; None if its time is not counted.
        """
        if self._logs_dense and account.num_dense:
            self._logs_dense = False
            logging.info(
                "The gradients of %d compressed vector(s) are sent dense in this step:"
                " their coded message would be longer (logged once).",
                account.num_dense,
            )
        self._accounts.append(account)
        if seconds is not None:
            self._exposed_seconds += account.exposed_seconds
            self._step_seconds += seconds

    def report(self) -> dict[str, float]:
        """Returns the means since the last report, by the names of the metrics.

        `exchange_share` is a fraction of the duration of the steps whose time counts.
        """
        accounts = self._accounts
        numbers: dict[str, float] = {
            f"{name}_per_step": round(
                sum(getattr(one, name) for one in accounts) / len(accounts)
            )
            for name in ("message_bytes", "bytes_sent")
        }
        share = self._exposed_seconds / self._step_seconds if self._step_seconds else 0
        numbers["exchange_share"] = float(share)
        if self._is_compressed:
            errors = [one.compression_error for one in accounts]
            numbers["compression_error"] = math.fsum(errors) / len(errors)
        self._accounts.clear()
        self._exposed_seconds = self._step_seconds = 0.0
        return numbers
