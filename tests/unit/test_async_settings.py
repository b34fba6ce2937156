"""The settings of asynchronous training, and what they exclude."""

import pytest

from resnet import resnet_main
from resnet.base.errors import UserError
from resnet.config.config import Config, differences
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from tests.in_process import assert_refused, run

EXPLAIN = ("--recipe=digits", "--sync_mode=async", "--explain")


def resolved(**given) -> Config:
    return resolve(digits.DIGITS, given, 1000, ("ant", "bee"))


def refusal(**given) -> str:
    with pytest.raises(UserError) as caught:
        resolved(**given)
    return str(caught.value)


def test_a_run_is_synchronous_unless_it_is_asked_for():
    config = resolved()
    assert (config.sync_mode, config.is_async) == ("bsp", False)
    assert (config.max_staleness, config.staleness_rate) == (-1, "none")
    assert resolved(sync_mode="async").is_async


def test_only_the_number_of_servers_may_change_when_a_run_resumes():
    asynchronous = resolved(sync_mode="async")
    assert differences(asynchronous, resolved(sync_mode="async", num_ps=3)) == []
    for other in (
        resolved(),
        resolved(sync_mode="async", max_staleness=2),
        resolved(sync_mode="async", staleness_rate="inverse"),
    ):
        assert differences(asynchronous, other)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num_ranks=2",), "got 2 rank(s) with --num_ps=1. Start at least 3 ranks"),
        (("--num_ranks=4", "--num_ps=3"), "Start at least 5 ranks, as by mpirun -np 5"),
        # 7 ranks of which 5 work.
        (
            ("--num_ranks=7", "--train_batch_size=64"),
            "the number of workers; got train_batch_size=64, 5 workers. Use 60 or",
        ),
    ],
)
def test_the_ranks_must_suffice_and_the_workers_share_a_batch(flags, words):
    assert_refused(run(resnet_main, *EXPLAIN, *flags), words)


def test_only_workers_share_a_batch():
    done = run(resnet_main, *EXPLAIN, "--num_ranks=7", "--train_batch_size=65")
    assert done.returncode == 0, done.stderr
