"""The kernels of each instruction set that this machine has, and their limit."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.base.errors import UserError
from resnet.hardware import cpu_features
from resnet.native import instruction_sets
from resnet.native.instruction_sets import CPU_FLAGS, NAMES
from tests.unit import each_instruction_set


@pytest.fixture
def kernels():
    """The kernels of the library, with their limit set again after the test."""
    native.ops()
    loaded = instruction_sets.kernels(native.OPS_LIBRARY)
    before = loaded.current()
    yield loaded
    each_instruction_set.limit_instruction_set(before)


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({}, "AVX512_CORE_AMX"),
        ({"RESNET_MAX_CPU_ISA": ""}, "AVX512_CORE_AMX"),
        ({"RESNET_MAX_CPU_ISA": "avx2"}, "AVX2"),
        ({"RESNET_MAX_CPU_ISA": "AVX512_CORE"}, "AVX512_CORE"),
    ],
)
def test_the_environment_limits_the_instruction_set(environ, limit):
    assert instruction_sets.limit_from(environ) == limit


@pytest.fixture
def on_arm(monkeypatch):
    """The names of instruction sets as on Arm."""
    sets = instruction_sets.of_machine("aarch64")
    monkeypatch.setattr(instruction_sets, "CPU_FLAGS", sets)
    monkeypatch.setattr(instruction_sets, "NAMES", tuple(sets))
    for name in ("FIRST_IN_FLOAT32", "FIRST_IN_BFLOAT16"):
        monkeypatch.setattr(instruction_sets, name, "NEON")


@pytest.mark.parametrize(
    ("limit", "name"), [("", "NEON"), ("neon", "NEON"), ("NONE",) * 2]
)
def test_arm_has_neon(on_arm, limit, name):
    assert instruction_sets.limit_from({"RESNET_MAX_CPU_ISA": limit}) == name
    with pytest.raises(UserError, match="one of NONE, NEON; got 'AVX2'"):
        instruction_sets.limit_from({"RESNET_MAX_CPU_ISA": "AVX2"})


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_neon_has_kernels_for_both_dtypes(on_arm, monkeypatch, dtype):
    assert instruction_sets.CPU_FLAGS["NEON"] == {"asimd"}
    for best, reason in (("NEON", ""), ("NONE", "this CPU has no asimd")):
        loaded = SimpleNamespace(best=lambda name=best: name)
        loaded.current = loaded.best
        monkeypatch.setattr(instruction_sets, "kernels", lambda _, k=loaded: k)
        assert native._why_not_fast(dtype) == reason


def test_a_limit_excludes_what_is_above_it(kernels, monkeypatch):
    flags = cpu_features.flags()
    assert kernels.best() == [name for name in NAMES if CPU_FLAGS[name] <= flags][-1]
    best = NAMES.index(kernels.best())
    for index, name in enumerate(NAMES):
        kernels.limit(name)
        assert NAMES.index(kernels.current()) == min(index, best)
    monkeypatch.setenv("RESNET_MAX_CPU_ISA", "AVX3")
    with pytest.raises(UserError, match=r"one of NONE, AVX2, .*; got 'AVX3'"):
        instruction_sets.kernels.__wrapped__(native.OPS_LIBRARY)


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("NONE", ()), ("AVX2", ("AVX2",)), ("AVX512_CORE_BF16", ("AVX2", "AVX512_CORE"))],
)
def test_usable_are_those_that_the_cpu_has_up_to_the_limit(monkeypatch, limit, usable):
    monkeypatch.setenv("RESNET_MAX_CPU_ISA", limit)
    monkeypatch.setattr(instruction_sets.Kernels, "best", lambda _: "AVX512_CORE")
    assert each_instruction_set.usable_instruction_sets() == usable


@pytest.mark.needs_cpu("avx512_bf16")
def test_widened_products_of_bf16_are_those_of_avx512(kernels):
    each_instruction_set.limit_instruction_set("AVX512_CORE_BF16")
    rng = np.random.default_rng(0)
    # 700 channels are two blocks of a product's inner dimension.
    images = tf.cast(rng.normal(size=[2, 5, 5, 700]), tf.bfloat16)
    kernel = tf.constant(rng.normal(size=[1, 1, 700, 40]), tf.float32)

    def outputs() -> np.ndarray:
        y = native.ops().resnet_conv2d(images, kernel, [], [], [], stride=1)
        return tf.cast(y, tf.float32).numpy()

    by_instruction = outputs()
    native.widen_bf16(True)
    widened = outputs()
    native.widen_bf16(False)
    np.testing.assert_array_equal(outputs(), by_instruction)
    each_instruction_set.limit_instruction_set("AVX512_CORE")
    np.testing.assert_array_equal(outputs(), widened)
    rounded = tf.cast(tf.cast(kernel, tf.bfloat16), tf.float64)
    exact = np.tensordot(tf.cast(images, tf.float64), rounded[0, 0], 1)
    np.testing.assert_allclose(widened, exact, rtol=2**-8, atol=1e-3)
    np.testing.assert_allclose(by_instruction, exact, rtol=2**-8, atol=1e-3)


def test_a_limit_is_said(kernels, caplog):
    each_instruction_set.limit_instruction_set("NONE")
    with caplog.at_level(logging.WARNING):
        assert native.fast_ops(tf.float32) is None
    assert "RESNET_MAX_CPU_ISA limits the compiled ops to NONE" in caplog.text
    assert "only for reading, resizing" in native.describe()


def test_ops_without_kernels_are_errors(kernels):
    each_instruction_set.limit_instruction_set("NONE")
    x, ones = tf.zeros([1, 4, 4, 8]), tf.ones([8])
    with pytest.raises(tf.errors.UnimplementedError, match="has kernels for in float"):
        native.ops().resnet_conv2d(x, tf.zeros([1, 1, 8, 8]), [], [], [], stride=1)
    each_instruction_set.limit_instruction_set("AVX2")
    with pytest.raises(tf.errors.UnimplementedError, match="in bfloat16"):
        native.ops().resnet_normalize(
            tf.cast(x, tf.bfloat16), ones, ones, ones, ones, relu=True
        )


@pytest.mark.parametrize("nesterov", [False, True])
def test_weights_are_the_same_bits_with_every_instruction_set(kernels, nesterov):
    values, velocities, gradients = np.random.default_rng(0).normal(size=(3, 70_001))
    results = []
    for name in NAMES:
        each_instruction_set.limit_instruction_set(name)
        variable = tf.Variable(values.astype(np.float32))
        velocity = tf.Variable(velocities.astype(np.float32))
        native.ops().resnet_momentum(
            [variable.handle],
            [velocity.handle],
            [tf.constant(gradients.astype(np.float32))],
            learning_rate=0.1,
            momentum=0.9,
            nesterov_momentum=0.9,
            nesterov=nesterov,
            weight_decays=[1e-4],
        )
        results.append(np.concatenate([variable.numpy(), velocity.numpy()]))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
