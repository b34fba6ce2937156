"""Compressed gradients of several ranks: their means, what is left, non-finite ones."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.compression import CompressionSettings, randomk_count, topk_count
from resnet.config.phases import StepSettings
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.exchange import transports
from resnet.exchange.codecs import CODECS, summed
from resnet.exchange.gradients import (
    CompressedExchange,
    Exchanged,
    GradientExchange,
    make_exchange,
)
from tests.reference import compression as reference
from tests.reference.compression import Stream

IN_3 = pytest.mark.ranks(3)
SEED = 11
# The last vector of SHAPES is a bucket by itself then, and the others are the next one.
SEVERAL_BUCKETS = 300
SHAPES = {"first/kernel": [3, 3, 4, 8], "first/bias": [8], "last/kernel": [50, 40]}
SIZES = [288, 8, 2000]
METHODS = [
    CompressionSettings(method="topk", ratio=0.05, error_feedback=True),
    CompressionSettings(method="topk", ratio=0.2, kept_values="bfloat16"),
    CompressionSettings(method="thresholdv", threshold=1.0, error_feedback=True),
    CompressionSettings(method="adaptivethreshold", error_feedback=True),
    CompressionSettings(method="terngrad"),
    CompressionSettings(method="qsgd", qstates=7),
    CompressionSettings(
        method="qsgd", qstates=7, qsgd_bucket=64, qsgd_norm="max", error_feedback=True
    ),
    CompressionSettings(method="randomk", ratio=0.1, error_feedback=True),
    CompressionSettings(method="fp16"),
    CompressionSettings(method="bf16", error_feedback=True),
]
IN_SLICES = [
    dataclasses.replace(settings, exchange="sliced")
    for settings in METHODS
    if settings.method != "randomk"
]


def name_of(value: CompressionSettings | str | int) -> str:
    """Returns what a parameter of a test is called."""
    if isinstance(value, CompressionSettings):
        return f"{value.method}-{value.exchange}"
    return str(value)


def gradients_of(rank: int, step: int, shapes=SHAPES) -> list[np.ndarray]:
    draw = np.random.default_rng([rank, step])
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes.values()]


def flat(arrays) -> np.ndarray:
    """Returns the values of all arrays or tensors."""
    return np.concatenate([np.asarray(array).ravel() for array in arrays])


def stepping(exchange: GradientExchange) -> Callable[..., Exchanged]:
    """Returns the exchange of gradients in a step, in one graph."""
    traced = tf.function(exchange, autograph=False)

    def exchange_step(gradients, step: int, loss: float = 1.0, flag: float = 0.0):
        rates = (tf.constant(rate) for rate in (0.1, 0.9, 0.9))
        settings = StepSettings(*rates, 0.01, 0.0, tf.constant(step, tf.int64))
        own = [tf.constant(gradient) for gradient in gradients]
        return traced(
            own, tf.constant(float(loss)), tf.constant([0.0, float(flag)]), settings
        )

    return exchange_step


def sent(
    values: np.ndarray, settings: CompressionSettings, stream: Stream
) -> tuple[np.ndarray, int]:
    """Returns the values that the others get of a vector, and the bytes, in NumPy."""
    if settings.method == "randomk":
        count = randomk_count(values.size, settings.ratio)
        indices = summed.draw_coordinates(
            values.size, count, tf.constant(stream, tf.int64)
        )
        kept = np.zeros_like(values)
        kept[indices.numpy()] = values[indices.numpy()]
        return kept, 4 * count
    message, _ = reference.encode(values, settings, stream)
    return reference.decode_mean(message, [values.size], 1)[0], message.size


class Reference:
    """The exchange of some vectors in NumPy, those of a rank in one bucket.

    `left` is what each rank has not sent of each vector, `num_bytes` what it sent last.
    """

    def __init__(
        self, settings: CompressionSettings, sizes: list[int], num_ranks: int
    ) -> None:
        self.left = [[np.zeros(size, np.float32) for size in sizes]] * num_ranks
        self.num_bytes = [0] * num_ranks
        self._settings = settings
        self._slices_left = [np.float32(0)] * num_ranks

    def exchange(self, gradients: list[list[np.ndarray]], step: int) -> np.ndarray:
        """Returns the means over ranks, from the vectors of each rank."""
        settings = self._settings
        means = [np.zeros_like(vector) for vector in gradients[0]]
        self.num_bytes = [0] * len(gradients)
        for rank, of_rank in enumerate(gradients):
            left = []
            for number, vector in enumerate(of_rank):
                vector = vector + self.left[rank][number]
                stream = Stream(SEED, number, step, rank)
                values, num_bytes = sent(vector, settings, stream)
                means[number] += values * (np.float32(1) / np.float32(len(gradients)))
                self.num_bytes[rank] += num_bytes
                left.append(vector - values)
            if settings.error_feedback:
                self.left[rank] = left
        return flat(self._of_slices(means, step) if self._is_sliced else means)

    @property
    def _is_sliced(self) -> bool:
        return self._settings.exchange == "sliced"

    def _of_slices(self, means: list[np.ndarray], step: int) -> list[np.ndarray]:
        """Returns the means that the owners of the slices send once more."""
        settings, num_ranks = self._settings, len(self._slices_left)
        backwards = means[::-1]  # The last vector comes first.
        sizes = [mean.size for mean in backwards]
        alignment = CODECS[settings.method].alignment(settings, max(sizes))
        slices = transports.slices_of(sizes, num_ranks, alignment)
        ends = np.cumsum([sum(piece.size for piece in pieces) for pieces in slices])
        parts = []
        for rank, part in enumerate(np.split(flat(backwards), ends[:-1])):
            whole = part + self._slices_left[rank]
            stream = Stream(SEED, len(means), step, rank)
            parts.append(sent(whole, settings, stream)[0] if whole.size else whole)
            if settings.error_feedback:
                self._slices_left[rank] = whole - parts[-1]
        return np.split(flat(parts), np.cumsum(sizes)[:-1])[::-1]


# Each method on each number of ranks, once by layers and once as a whole.
MEANS = [
    *[("layerwise", 2, settings) for settings in METHODS],
    *[("entiremodel", 2, settings) for settings in IN_SLICES],
    *[pytest.param("entiremodel", 3, settings, marks=IN_3) for settings in METHODS],
    *[pytest.param("layerwise", 3, settings, marks=IN_3) for settings in IN_SLICES],
]


@pytest.mark.parametrize(("compress", "num_ranks", "settings"), MEANS, ids=name_of)
def test_all_ranks_have_the_mean_of_what_the_ranks_sent(
    communicator, monkeypatch, compress, settings, num_ranks
):
    assert communicator.num_ranks == num_ranks
    settings = dataclasses.replace(settings, compress=compress)
    if settings.exchange != "sliced":  # Means don't depend on the buckets.
        monkeypatch.setattr(transports, "BUCKET_VALUES", SEVERAL_BUCKETS)
    is_one = compress == "entiremodel"
    exchange = CompressedExchange(communicator, SHAPES, settings, SEED)
    exchange_step = stepping(exchange)
    expected = Reference(settings, [sum(SIZES)] if is_one else SIZES, num_ranks)
    rank = communicator.rank
    for step in range(3):
        result = exchange_step(gradients_of(rank, step), step, rank, rank == 1)
        assert result.local_loss == rank
        assert float(result.loss) == pytest.approx((num_ranks - 1) / 2)
        assert result.flags.numpy() == pytest.approx([0, 1 / num_ranks])
        assert [mean.shape for mean in result.gradients] == list(SHAPES.values())
        vectors = [
            [gradient.ravel() for gradient in gradients_of(number, step)]
            for number in range(num_ranks)
        ]
        if is_one:
            vectors = [[flat(of_rank)] for of_rank in vectors]
        means = expected.exchange(vectors, step)
        ours = flat(result.gradients)
        np.testing.assert_allclose(ours, means, rtol=1e-6, atol=2e-6)
        assert result.account.message_bytes == expected.num_bytes[rank]
        bits = communicator.allgather(ours.tobytes())
        assert bits == bits[:1] * num_ranks
        if settings.error_feedback:
            for name, rest in zip(
                ["model"] if is_one else SHAPES, expected.left[rank], strict=True
            ):
                residual = exchange.rank_variables[f"residual/{name}"]
                np.testing.assert_array_equal(residual.numpy(), rest)
        else:
            assert not exchange.rank_variables


@pytest.mark.parametrize(
    "method", ["topk", *(pytest.param(name, marks=IN_3) for name in ("qsgd", "bf16"))]
)
def test_slices_lose_nothing_but_what_is_left_over(communicator, monkeypatch, method):
    """Sums of all steps: what arrived and what is left over are all gradients."""
    monkeypatch.setattr(transports, "BUCKET_VALUES", SEVERAL_BUCKETS)
    settings = CompressionSettings(
        compress="layerwise",
        method=method,
        ratio=0.1,
        qstates=7,
        qsgd_norm="max",
        exchange="sliced",
        error_feedback=True,
    )
    compressed = CompressedExchange(communicator, SHAPES, settings, SEED)
    exchange_step = stepping(compressed)
    total = np.zeros(sum(SIZES))
    for step in range(10):
        result = exchange_step(gradients_of(communicator.rank, step), step)
        total += flat(result.gradients)
        for rank in range(communicator.num_ranks):
            gradient = flat(gradients_of(rank, step)).astype(np.float64)
            total -= gradient / communicator.num_ranks
    own = {name: value.numpy() for name, value in compressed.rank_variables.items()}
    left = left_to_send(communicator.allgather(own))
    np.testing.assert_allclose(total + flat(left), 0, atol=2e-5)


def left_to_send(of_ranks: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Returns the mean over ranks of what is left of each vector, slices included."""
    left = [
        np.mean([own[f"residual/{name}"] for own in of_ranks], axis=0)
        for name in SHAPES
    ]
    for number, bucket in enumerate(transports.buckets(SIZES)):
        lacked = flat(own[f"slice_residual/{number}"] for own in of_ranks)
        ends = np.cumsum([SIZES[vector] for vector in bucket])
        for vector, values in zip(bucket, np.split(lacked, ends[:-1]), strict=True):
            left[vector] = left[vector] + values
    return left


@IN_3
def test_powersgd_is_an_iteration_of_the_power_method(communicator):
    num_ranks = communicator.num_ranks
    settings = CompressionSettings(
        compress="layerwise", method="powersgd", powersgd_rank=3, error_feedback=True
    )
    exchange = CompressedExchange(communicator, SHAPES, settings, SEED)
    state = exchange.rank_variables
    exchange_step = stepping(exchange)
    matrices = {"first/kernel": (36, 8), "last/kernel": (50, 40)}
    right = {name: state[f"powersgd/{name}"].numpy() for name in matrices}
    left = {name: [np.zeros(shape)] * num_ranks for name, shape in matrices.items()}
    for step in range(3):
        result = exchange_step(gradients_of(communicator.rank, step), step)
        of_ranks = [
            dict(zip(SHAPES, gradients_of(rank, step), strict=True))
            for rank in range(num_ranks)
        ]
        ours = dict(zip(SHAPES, result.gradients, strict=True))
        bias = np.mean([gradients["first/bias"] for gradients in of_ranks], axis=0)
        np.testing.assert_allclose(ours["first/bias"], bias, rtol=1e-6, atol=1e-6)
        for name, shape in matrices.items():
            own = [
                gradients[name].reshape(shape).astype(np.float64) + rest
                for gradients, rest in zip(of_ranks, left[name], strict=True)
            ]
            basis, _ = np.linalg.qr(np.mean(own, axis=0) @ right[name])
            mean = basis @ (basis.T @ np.mean(own, axis=0))
            np.testing.assert_allclose(
                ours[name].numpy().reshape(shape), mean, atol=1e-4
            )
            left[name] = [matrix - basis @ (basis.T @ matrix) for matrix in own]
            right[name] = state[f"powersgd/{name}"].numpy()
            residual = state[f"residual/{name}"].numpy().reshape(shape)
            rest = left[name][communicator.rank]
            np.testing.assert_allclose(residual, rest, atol=1e-4)


def test_powersgd_of_too_high_a_rank_is_refused(communicator):
    settings = CompressionSettings(
        compress="layerwise", method="powersgd", powersgd_rank=9
    )
    with pytest.raises(AgreedError, match=r"at most 8, the smaller side of .* 36 x 8"):
        CompressedExchange(communicator, SHAPES, settings, SEED)


@pytest.mark.parametrize(
    "settings",
    [
        METHODS[0],
        *(CompressionSettings(method=name) for name in ("powersgd", "randomk", "bf16")),
        IN_SLICES[0],
    ],
    ids=name_of,
)
def test_a_gradient_that_is_not_finite_is_told_to_all_ranks(communicator, settings):
    settings = dataclasses.replace(settings, compress="layerwise", error_feedback=False)
    exchange = CompressedExchange(communicator, SHAPES, settings, SEED)
    gradients = gradients_of(communicator.rank, 0)
    if communicator.rank == 1:
        gradients[0][0, 0, 0, 3] = np.nan
    result = stepping(exchange)(gradients, 0)
    assert np.isnan(result.loss)
    assert np.isnan(result.local_loss) == (communicator.rank == 1)


@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        ("topk", "allgather"),
        pytest.param("randomk", "auto", marks=IN_3),
        pytest.param("topk", "sliced", marks=IN_3),
    ],
)
def test_short_vectors_are_sent_whole(communicator, method, exchange):
    num_ranks = communicator.num_ranks
    settings = CompressionSettings(
        compress="layerwise",
        method=method,
        exchange=exchange,
        ratio=0.05,
        error_feedback=True,
        dense_below=100,
    )
    kernels = {name: shape for name, shape in SHAPES.items() if "kernel" in name}
    both = CompressedExchange(communicator, SHAPES, settings, SEED)
    alone = CompressedExchange(communicator, kernels, settings, SEED)
    with_bias, without = stepping(both), stepping(alone)
    for step in range(3):
        first, bias, last = gradients_of(communicator.rank, step)
        ours = with_bias([first, bias, last], step)
        of_kernels = without([first, last], step)
        np.testing.assert_array_equal(
            flat([ours.gradients[0], ours.gradients[2]]), flat(of_kernels.gradients)
        )
        biases = [gradients_of(rank, step)[1] for rank in range(num_ranks)]
        np.testing.assert_allclose(ours.gradients[1], np.mean(biases, 0), rtol=1e-5)
        of_biases = 4 * 8 * 2 * (num_ranks - 1) / num_ranks
        more = np.subtract(ours.account[:2], of_kernels.account[:2])
        assert more == pytest.approx([32, of_biases], abs=1)
    assert not np.any(both.rank_variables["residual/first/bias"])
    np.testing.assert_array_equal(
        both.rank_variables["residual/last/kernel"],
        alone.rank_variables["residual/last/kernel"],
    )


OF_DGC = {"first/kernel": [3, 3, 4, 8], "last/bias": [40]}


def dgc_of(communicator: Communicator, **changes) -> GradientExchange:
    settings = {
        "compress": "layerwise",
        "method": "dgc",
        "ratio": 0.05,
        "dgc_warmup_epochs": 2,
        "clip_norm": 5.0,
        "global_batch_size": 8,
        "train_steps": 100,
        "warmup_steps": 0,
    }
    config = resolve(digits.DIGITS, settings, 24, ("a", "b", "c"))  # 3 steps an epoch.
    config = dataclasses.replace(config, **changes)
    return make_exchange(config, OF_DGC, communicator)


@pytest.mark.parametrize(
    ("nesterov", "exchange"),
    [(False, "sliced"), pytest.param(True, "allgather", marks=IN_3)],
)
def test_dgc_sends_the_largest_accumulated_velocities(communicator, nesterov, exchange):
    num_ranks = communicator.num_ranks
    dgc = dgc_of(communicator, nesterov=nesterov, exchange=exchange)
    assert dgc.has_momentum
    exchange_step = stepping(dgc)
    velocities, waiting = np.zeros((2, num_ranks, 328))
    total_sent, total_arrived = np.zeros(328), np.zeros(328)
    vectors = [slice(0, 288), slice(288, 328)]
    for step in range(0, 12, 2):
        if step == 8:
            dgc.reset_momentum()
            velocities[:] = 0
        own = gradients_of(communicator.rank, step, OF_DGC)
        arrived = flat(exchange_step(own, step).gradients)
        ratio = 0.05 ** min((step // 3 + 1) / 3, 1)
        means = np.zeros(328)
        for rank in range(num_ranks):
            gradient = flat(gradients_of(rank, step, OF_DGC)).astype(np.float64)
            gradient *= min(1, 5 / num_ranks**0.5 / np.linalg.norm(gradient))
            velocities[rank] = 0.9 * velocities[rank] + gradient
            added = gradient + 0.9 * velocities[rank] if nesterov else velocities[rank]
            waiting[rank] += added
            for vector in vectors:
                values = waiting[rank, vector]
                count = topk_count(values.size, ratio)
                is_sent = np.abs(values) >= np.sort(np.abs(values))[-count]
                means[vector] += np.where(is_sent, values, 0) / num_ranks
                velocities[rank, vector][is_sent] = 0
                values[is_sent] = 0
        if exchange == "allgather":
            np.testing.assert_allclose(arrived, means, atol=1e-5)
        total_sent += means
        total_arrived += arrived
        for prefix, expected in (("velocity", velocities), ("residual", waiting)):
            ours = flat(dgc.rank_variables[f"{prefix}/{name}"] for name in OF_DGC)
            np.testing.assert_allclose(ours, expected[communicator.rank], atol=1e-5)
    if exchange == "sliced":  # What didn't arrive is with the owners of the slices.
        left = flat(
            communicator.allgather(dgc.rank_variables["slice_residual/0"].numpy())
        )
        left = np.roll(left, -40)  # The last variable comes first.
        np.testing.assert_allclose(total_arrived + left, total_sent, atol=1e-5)


@pytest.mark.parametrize("nesterov", [False, pytest.param(True, marks=IN_3)])
def test_short_vectors_of_dgc_have_plain_momentum(communicator, nesterov):
    num_ranks = communicator.num_ranks
    dgc = dgc_of(communicator, nesterov=nesterov, dense_below=50, clip_norm=0)
    exchange_step = stepping(dgc)
    velocity = np.zeros(40)
    for step in range(4):
        own = gradients_of(communicator.rank, step, OF_DGC)
        result = exchange_step(own, step)
        mean = np.mean(
            [gradients_of(rank, step, OF_DGC)[1] for rank in range(num_ranks)], 0
        )
        velocity = 0.9 * velocity + mean
        expected = mean + 0.9 * velocity if nesterov else velocity
        np.testing.assert_allclose(result.gradients[1], expected, atol=1e-5)
        assert not np.any(dgc.rank_variables["residual/last/bias"])
