"""Norms of tensors; jobs/test_fresh_process.py has other numbers of threads."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from resnet.optim import norms

SHAPES = [(), (0,), (1,), (64,), (1024,), (1025,), (3, 3, 128, 130), (2049, 1024)]
from tests.unit.one_optimizer import make, settings


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_norm_is_that_of_numpy(shape):
    values = drawn(shape)
    expected = np.linalg.norm(values.astype(np.float64).ravel())
    assert norms.norm(tf.constant(values)).numpy() == pytest.approx(expected, rel=3e-7)


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_tensors_are_scaled_to_the_largest_norm_together(share):
    values = [drawn(shape) for shape in SHAPES]
    whole = np.sqrt(sum(np.sum(one.astype(np.float64) ** 2) for one in values))
    found = norms.clip_by_global_norm(
        [tf.constant(one) for one in values], share * whole
    )
    for one, before in zip(found, values, strict=True):
        np.testing.assert_allclose(one, before * min(share, 1.0), rtol=1e-6)


def test_what_is_not_finite_stays_so():
    values = [tf.constant([1.0, np.inf]), tf.constant([2.0])]
    found = norms.clip_by_global_norm(values, 1.0)
    assert all(np.isnan(one).any() for one in found)


def digests_of_updates() -> list[str]:
    """Returns a digest of the weights after updates with sums over large tensors."""
    found = []
    for kind, clip_norm in (("momentum", 1.0), ("lars", 0.0), ("muon", 0.0)):
        variables = [tf.Variable(drawn(shape)) for shape in SHAPES[-2:]]
        gradients = [tf.constant(1e-3 * drawn(shape) ** 3) for shape in SHAPES[-2:]]
        optimizer = make(kind, variables, [True, True])

        def update(optimizer=optimizer, gradients=gradients, clip_norm=clip_norm):
            if clip_norm:
                gradients = norms.clip_by_global_norm(gradients, clip_norm)
            optimizer.apply(gradients, settings(0.1, 0.9, 5e-5))

        tf.function(update, autograph=False)()
        data = b"".join(variable.numpy().tobytes() for variable in variables)
        found.append(hashlib.sha256(data).hexdigest()[:16])
    return found
