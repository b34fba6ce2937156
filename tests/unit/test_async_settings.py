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


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"accumulation_steps": 2}, "--accumulation_steps"),
        ({"compress": "layerwise"}, "--compress"),
        ({"sync_every": 2}, "--sync_every and --qsr_coefficient"),
        ({"qsr_coefficient": 0.1}, "--sync_every and --qsr_coefficient"),
        ({"optimizer": "lars"}, "--optimizer=lars"),
        ({"optimizer": "sgdw"}, "--optimizer=sgdw"),
        ({"optimizer": "adamw"}, "--optimizer=adamw"),
        ({"ema_decay": 0.9}, "--ema_decay"),
        ({"layer_rates": "classifier:10"}, "--layer_rates"),
        ({"freeze_batch_norm": True, "initial_weights": "a"}, "--freeze_batch_norm"),
        ({"shard_by": "file"}, "--shard_by=file"),
        ({"on_bad_record": "skip"}, "--on_bad_record=skip"),
        ({"decoded_cache_mb": 1}, "--decoded_cache_mb"),
        ({"record_log": "records"}, "--record_log"),
        ({"recalibration_batches": 2}, "--recalibration_batches"),
    ],
)
def test_what_workers_cannot_do_by_themselves_is_refused(given, name):
    resolved(**given)  # A synchronous run may.
    assert refusal(sync_mode="async", **given) == (
        f"--sync_mode=async excludes {name}: leave it out, or train with"
        " --sync_mode=bsp."
    )


def test_all_that_is_excluded_is_named_at_once():
    sentence = refusal(sync_mode="async", ema_decay=0.9, accumulation_steps=2)
    assert "excludes --accumulation_steps:" in sentence
    assert "excludes --ema_decay:" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_staleness", 0),
        ("max_staleness", 4),
        ("staleness_rate", "inverse"),
        ("num_ps", 3),
    ],
)
def test_a_synchronous_run_has_neither_staleness_nor_servers(name, value):
    assert refusal(**{name: value}) == (
        f"--{name} needs --sync_mode=async; got {value}. Leave it out."
    )
    assert getattr(resolved(sync_mode="async", **{name: value}), name) == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sync_mode": "ssp"}, "--sync_mode must be one of bsp, async; got ssp"),
        ({"max_staleness": -2}, "--max_staleness must be"),
        ({"staleness_rate": "linear"}, "--staleness_rate must be one of none, inverse"),
        ({"num_ps": 0}, "--num_ps must be at least 1; got 0"),
    ],
)
def test_values_that_mean_nothing_are_refused(given, words):
    assert words in refusal(**{"sync_mode": "async", **given})


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
