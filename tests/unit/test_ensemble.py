import numpy as np
import pytest

from resnet.evaluation.evaluator import Ensemble

NUM_EXAMPLES = 5
NUM_CLASSES = 3
LABELS = np.array([0, 2, 1, 1, 0], np.int32)


def probabilities(seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).random((NUM_EXAMPLES, NUM_CLASSES))
    return found / found.sum(1, keepdims=True)


def add(ensemble: Ensemble, of_network: np.ndarray, batch_size: int) -> None:
    """Adds a network in batches, the last one filled up with its last example."""
    with np.errstate(divide="ignore"):
        logarithms = np.log(of_network).astype(np.float32)
    for first in range(0, NUM_EXAMPLES, batch_size):
        places = np.arange(first, first + batch_size)
        mask = places < NUM_EXAMPLES
        places = np.minimum(places, NUM_EXAMPLES - 1)
        ensemble.add(first, logarithms[places], LABELS[places], mask)
    ensemble.penalties.append(0.0)


def joined(ensemble: Ensemble, batch_size: int) -> list[np.ndarray]:
    batches = list(ensemble.batches(batch_size))
    return [np.concatenate(column) for column in zip(*batches, strict=True)]


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("num_networks", [1, 2, 3])
def test_it_is_the_mean_of_the_probabilities(num_networks, batch_size):
    of_networks = [probabilities(seed) for seed in range(num_networks)]
    ensemble = Ensemble(NUM_EXAMPLES, NUM_CLASSES)
    for one in of_networks:
        add(ensemble, one, batch_size)
    logits, labels, mask = joined(ensemble, 2)
    assert logits.dtype == np.float32
    # Some roundings of float32 logarithms around 1.
    np.testing.assert_allclose(np.exp(logits), np.mean(of_networks, 0), rtol=1e-5)
    assert labels.tolist() == LABELS.tolist()
    assert mask.all()


def test_one_network_alone_keeps_its_logarithms_to_the_bit():
    ensemble = Ensemble(NUM_EXAMPLES, NUM_CLASSES)
    logarithms = np.float32([[-200, -1, -0.4]] * NUM_EXAMPLES)
    ensemble.add(0, logarithms, LABELS, np.ones(NUM_EXAMPLES, bool))
    ensemble.penalties.append(0.0)
    np.testing.assert_array_equal(joined(ensemble, 5)[0], logarithms)


def test_what_is_too_small_for_a_float32_keeps_its_logarithm():
    ensemble = Ensemble(1, 2)
    for small in (-300.0, -400.0):
        found = np.float32([[small, 0]])
        ensemble.add(0, found, np.zeros(1, np.int32), np.ones(1, bool))
        ensemble.penalties.append(0.0)
    (logits, _, _) = joined(ensemble, 1)
    # Half of exp(-300), and 1.
    np.testing.assert_allclose(logits, [[-300 - np.log(2), 0]], rtol=1e-6, atol=1e-6)


def test_an_example_that_one_network_did_not_see_does_not_count():
    ensemble = Ensemble(NUM_EXAMPLES, NUM_CLASSES)
    found = np.zeros((NUM_EXAMPLES, NUM_CLASSES), np.float32)
    everything = np.ones(NUM_EXAMPLES, bool)
    ensemble.add(0, found, LABELS, everything)
    ensemble.add(0, found, LABELS, np.arange(NUM_EXAMPLES) != 3)
    ensemble.add(0, found, LABELS, everything)
    ensemble.penalties += [0.0] * 3
    assert joined(ensemble, 5)[2].tolist() == [True, True, True, False, True]


def test_a_network_that_says_no_numbers_spoils_its_examples_only():
    ensemble = Ensemble(2, 2)
    real = np.ones(2, bool)
    ensemble.add(0, np.float32([[np.nan, np.nan], [-1, -0.5]]), LABELS[:2], real)
    ensemble.add(0, np.float32([[-1, -0.5], [-1, -0.5]]), LABELS[:2], real)
    ensemble.penalties += [0.0] * 2
    logits = joined(ensemble, 2)[0]
    assert np.isnan(logits[0]).all()
    np.testing.assert_allclose(logits[1], [-1, -0.5], rtol=1e-6)


def test_the_penalty_is_the_mean_of_the_networks():
    ensemble = Ensemble(0, NUM_CLASSES)
    ensemble.penalties += [1.0, 2.0, 6.0]
    assert ensemble.penalty == 3.0
    assert list(ensemble.batches(4)) == []  # A rank without examples.
