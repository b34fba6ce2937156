"""Ranks train as one process would, and end with the same bits."""

import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
import pytest

from resnet.checkpoint.manager import take_snapshot
from resnet.distributed import communicator as distributed
from resnet.distributed.communicator import AgreedFailure
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.training import loop as training
from tests import rank_state
from tests.parallel.train_some_steps import train


@pytest.fixture(scope="module")
def outcome(communicator, records):
    """Returns `outcome(freeze, num_parts=1)`: what five steps of the ranks end with."""
    return functools.cache(functools.partial(train, communicator, records))


@pytest.fixture(scope="module")
def of_one(records):
    """Returns the weights after five steps of one process; each rank trains them."""
    return train(distributed.connect(ProcessInfo()), records, True)["weights"][0]


def test_a_rank_has_one_mpi_library_and_what_is_built_for_its_interface():
    maps = Path("/proc/self/maps").read_text()
    # A site's compiler wrapper may link its MPI's old bindings for C++, too.
    pattern = r"/(libmpi(?!_cxx)|MPI|mpi_lib)(?=[._])([^/\s]*)$"
    names = sorted(set(re.findall(pattern, maps, re.M)))
    assert [first for first, _ in names] == ["MPI", "libmpi", "mpi_lib"]
    words = {word for _, rest in names for word in re.findall("mpich|openmpi", rest)}
    assert len(words) <= 1  # None, if both are built for the MPI of a site.


@pytest.mark.ranks(3)
def test_three_ranks_end_with_the_weights_of_one(outcome, of_one):
    weights = outcome(True)["weights"]
    assert len(weights) == 3
    assert_same_sums(weights[0], of_one)


def test_two_ranks_of_three_parts_end_with_the_weights_of_one_of_none(outcome, of_one):
    first, second = outcome(True, num_parts=3)["weights"]
    assert_same_sums(first, of_one)
    np.testing.assert_array_equal(first, second)


def assert_same_sums(ours: np.ndarray, expected: np.ndarray) -> None:
    """Sums in another order: a few roundings of float32 (6e-8) a step."""
    difference = np.linalg.norm(ours - expected) / np.linalg.norm(expected)
    assert difference < 1e-5
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 1e-5


def test_weights_are_the_same_bits_on_all_ranks_and_averages_while_averaged(outcome):
    result = outcome(False)
    weights, before = result["weights"], result["averages_before"]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(before[0] - before[1]).max() > 1e-3  # Each saw its own batches.
    averaged = result["averages_averaged"]
    np.testing.assert_array_equal(averaged[0], averaged[1])
    mean = before.mean(axis=0)
    np.testing.assert_allclose(averaged[0], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(result["averages_after"], before)


@pytest.mark.ranks(3)
def test_a_phase_with_frozen_batch_norm_begins_with_the_mean_of_the_averages(
    communicator, tmp_path
):
    state = rank_state.make(tmp_path)
    first = state.config.phases[0]
    frozen = dataclasses.replace(first, name="frozen", freeze_batch_norm=True)
    state.config = dataclasses.replace(state.config, phases=(first, frozen))
    exchange = GradientExchange(communicator.collectives, state.names)
    for step, expected in [
        (first.num_steps - 1, communicator.rank),
        (first.num_steps, 1),
        (first.num_steps + 1, communicator.rank),
    ]:
        rank_state.set_to(state, step, communicator.rank)
        training._begin_step(state, exchange, communicator)
        rank_state.assert_averages_are(state, expected)


def test_a_save_compares_all_that_ranks_share_and_no_average_of_their_own(
    communicator, tmp_path
):
    state = rank_state.make(tmp_path, ema_decay=0.5)
    is_last = communicator.rank == communicator.num_ranks - 1

    def failure(name: str, value: float) -> str:
        """Returns what the ranks say, with one value of the last rank changed."""
        rank_state.set_to(state, 3, communicator.rank)
        variable = state.tensors()[name]
        array = variable.numpy()
        array.flat[0] = value
        variable.assign(array if is_last else variable)
        try:
            take_snapshot(state, {}, communicator)
        except AgreedFailure as error:
            return str(error)
        return ""

    of_ranks = set(state.tensors()) - set(state.named_averages)
    for kind in ("model/", "velocity/", "ema/"):
        name = min(name for name in of_ranks if name.startswith(kind))
        sentence = f"the values of {name} after step 3 must be the same on all ranks"
        assert failure(name, 9.0).startswith(sentence)
    for name in state.named_averages:
        assert failure(name, 9.0) == ""  # The mean of all ranks is saved.
        sentence = (
            f"{name} after step 3 is not finite on rank {communicator.num_ranks - 1}"
        )
        assert failure(name, np.nan).startswith(sentence)
