"""Several ranks do what one would do."""

import functools

import numpy as np
import pytest

pytestmark = pytest.mark.multiprocess

PROGRAM = "tests/jobs/train_some_steps.py"


@pytest.fixture(scope="module")
def outcome(run_ranks, records, tmp_path_factory):
    """Returns `outcome(num_ranks, freeze, num_parts=1)`: what five steps end with."""
    folder = tmp_path_factory.mktemp("outcomes")

    @functools.cache
    def train(
        num_ranks: int, freeze: bool, num_parts: int = 1
    ) -> dict[str, np.ndarray]:
        output = folder / f"{num_ranks}-{freeze}-{num_parts}.npz"
        arguments = [records, output, 5, freeze, num_parts]
        job = run_ranks(num_ranks, PROGRAM, *map(str, arguments))
        assert job.returncode == 0, job.stderr
        return dict(np.load(output))

    return train


def test_two_and_three_ranks_end_with_the_weights_of_one(outcome):
    one = outcome(1, True)["weights"][0]
    for num_ranks in (2, 3):
        assert_same_sums(outcome(num_ranks, True)["weights"][0], one)


def test_two_ranks_of_three_parts_end_with_the_weights_of_one_of_none(outcome):
    one = outcome(1, True)["weights"][0]
    first, second = outcome(2, True, num_parts=3)["weights"]
    assert_same_sums(first, one)
    np.testing.assert_array_equal(first, second)


def assert_same_sums(ours: np.ndarray, expected: np.ndarray) -> None:
    """Sums in another order: a few roundings of float32 (6e-8) a step."""
    difference = np.linalg.norm(ours - expected) / np.linalg.norm(expected)
    assert difference < 1e-5
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 1e-5


def test_the_comparison_would_see_a_difference(outcome):
    """Other statistics in the normalization must not pass for the same weights."""
    frozen, trained = (outcome(2, freeze)["weights"][0] for freeze in (True, False))
    assert np.linalg.norm(frozen - trained) / np.linalg.norm(frozen) > 1e-4


def test_weights_are_the_same_bits_on_all_ranks_and_averages_while_averaged(outcome):
    result = outcome(2, False)
    weights, before = result["weights"], result["averages_before"]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(before[0] - before[1]).max() > 1e-3  # Each saw its own batches.
    averaged = result["averages_averaged"]
    np.testing.assert_array_equal(averaged[0], averaged[1])
    mean = before.mean(axis=0)
    np.testing.assert_allclose(averaged[0], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(result["averages_after"], before)
