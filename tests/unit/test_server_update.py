"""The update of a parameter server: the op and the stock ops against the formula."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.config.recipe import TrainingSettings
from resnet.models.layers.normalization import Statistic
from resnet.training.parameter_servers import servers
from resnet.training.parameter_servers.servers import (
    ALREADY_APPLIED,
    MOST_APART,
    ServerVariables,
    num_updates,
)
from tests.unit.one_optimizer import Twin, config_of

WAYS = pytest.mark.parametrize("way", ["apply_update", "apply_update_with_stock_ops"])


def make_server(
    weights: list[Any], averages: list[Any] = (), decays: list[bool] | None = None
) -> Any:
    """Returns what a `Server` has, in this process; its velocities are 0."""
    return SimpleNamespace(
        device="/cpu:0",
        weights=[tf.Variable(one, dtype=tf.float32) for one in weights],
        velocities=[tf.Variable(tf.zeros(np.shape(one))) for one in weights],
        averages=[tf.Variable(one, dtype=tf.float32) for one in averages],
        decays=[True] * len(weights) if decays is None else decays,
        applied=tf.Variable(tf.zeros([1 + MOST_APART], tf.int64)),
    )


def values(server: Any) -> list[np.ndarray]:
    """Returns copies of everything on a server."""
    variables = [*server.weights, *server.velocities, *server.averages, server.applied]
    return [np.array(one.numpy()) for one in variables]


def assert_unchanged(server: Any, before: list[np.ndarray]) -> None:
    for ours, expected in zip(values(server), before, strict=True):
        np.testing.assert_array_equal(ours, expected)


def update(
    server: Any,
    gradients: list[Any],
    number: int,
    *,
    read_at: int | None = None,
    statistics: list[Any] = (),
    average_step: float = 0.1,
    rate: float = 1.0,
    momentum: float = 0.0,
    nesterov_momentum: float = 0.0,
    decay: float = 0.0,
    nesterov: bool = False,
    inverse_staleness: bool = False,
    way: str = "apply_update",
) -> int:
    """Updates a server and returns the staleness; 0 unless `read_at` is given."""
    scalars = map(tf.constant, (rate, momentum, nesterov_momentum))
    count = num_updates(server)
    staleness = getattr(servers, way)(
        server,
        [tf.constant(one, tf.float32) for one in gradients],
        [
            Statistic(average, tf.constant(one, tf.float32), average_step)
            for average, one in zip(server.averages, statistics, strict=True)
        ],
        tf.constant(number, tf.int64),
        count if read_at is None else tf.constant(read_at, tf.int64),
        StepSettings(*scalars, decay),
        config(nesterov, inverse_staleness),
    )
    return int(staleness)


def config(nesterov: bool = False, is_inverse: bool = False) -> TrainingSettings:
    rate = "inverse" if is_inverse else "constant"
    return config_of("momentum", nesterov, staleness_rate=rate)


@pytest.fixture(autouse=True)
def compiled_ops():
    """The tests of `apply` are of the op, never of its fallback."""
    assert native.ops() is not None


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@WAYS
def test_several_updates_are_those_of_the_formula(way, nesterov, inverse):
    generator = np.random.default_rng(0)

    def normal(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        return [generator.normal(size=one).astype(np.float32) for one in shapes]

    shapes, of_averages = [(2, 3), (70_000,), ()], [(5,), (3,)]  # More than one task.
    weights, averages = normal(shapes), normal(of_averages)
    decays = [True, False, True]
    server = make_server(weights, averages, decays)
    pairs = zip(weights, decays, strict=True)
    twins = [Twin(*pair, config(nesterov)) for pair in pairs]
    others = {"nesterov_momentum": 0.8, "decay": 0.05}
    options = {"nesterov": nesterov, "inverse_staleness": inverse, "way": way}
    for count, (number, read_at, rate, momentum) in enumerate(
        [(7, 0, 0.1, 0.9), (3, 0, 0.2, 0.45), (4, 2, 0.1, 0.9), (0, 0, 0.3, 0.9)]
    ):
        gradients, statistics = normal(shapes), normal(of_averages)
        facts = {"read_at": read_at, "statistics": statistics, "rate": rate, **options}
        staleness = update(
            server, gradients, number, momentum=momentum, **facts, **others
        )
        assert staleness == count - read_at
        if inverse:
            rate /= max(1, staleness)
        for twin, gradient in zip(twins, gradients, strict=True):
            twin.step(gradient, rate=rate, momentum=momentum, **others)
        for place, statistic in enumerate(statistics):
            averages[place] = 0.9 * averages[place] + 0.1 * statistic
    assert num_updates(server) == 4
    expected = [
        *(twin.weights for twin in twins),
        *(twin.velocity for twin in twins),
        *averages,
    ]
    for ours, value in zip(values(server)[:-1], expected, strict=True):
        # Two roundings of a float32 an update, over a few updates.
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=2e-6)


@WAYS
def test_a_closure_is_applied_once(way):
    server = make_server([[1.0, 2.0]], [[3.0]])
    assert update(server, [[1.0, 1.0]], 6, statistics=[[1.0]], way=way) == 0
    assert update(server, [[1.0, 1.0]], 5, statistics=[[1.0]], way=way) == 0
    before = values(server)
    for number in (6, 5):
        again = update(server, [[9.0, 9.0]], number, statistics=[[9.0]], way=way)
        assert again == ALREADY_APPLIED
    assert_unchanged(server, before)
    assert num_updates(server) == 2


def test_a_lost_update_of_any_server_is_an_error():
    variables = SimpleNamespace(servers=[make_server([0.0]), make_server([0.0])])
    for server in variables.servers:
        update(server, [1.0], 0)
    update(variables.servers[0], [1.0], 1)
    words = "server 1 must have applied 2 updates, .*; it has applied 1"
    with pytest.raises(RuntimeError, match=words):
        ServerVariables.require_updates(variables, 2)
    update(variables.servers[1], [1.0], 1)
    ServerVariables.require_updates(variables, 2)


@WAYS
def test_closures_that_share_a_slot_are_told_apart(way):
    server = make_server([0.0])
    last, shared = MOST_APART - 1, 2 * MOST_APART
    numbers = [0, last, 3, 3 + MOST_APART, 2 + shared, 3 + shared]
    assert [update(server, [1.0], number, way=way) for number in numbers] == [0] * 6
    assert server.weights[0].numpy() == -6
    # The last ones are known.
    for number in (last, 2 + shared, 3 + shared):
        assert update(server, [1.0], number, way=way) == ALREADY_APPLIED
    applied = server.applied.numpy()
    slots = [6, 1, 3 + shared, 4 + shared, MOST_APART]
    assert applied[[0, 1, 3, 4, MOST_APART]].tolist() == slots
    assert np.count_nonzero(applied) == 5


@WAYS
def test_what_was_read_before_an_update_stays_as_it_was(way):
    server = make_server([tf.ones([3])], [tf.ones([2])])
    held = [*server.weights, *server.velocities, *server.averages, server.applied]

    @tf.function
    def step() -> list[tf.Tensor]:
        before = [variable.read_value() for variable in held]
        with tf.control_dependencies(before):
            staleness = getattr(servers, way)(
                server,
                [tf.ones([3])],
                [Statistic(server.averages[0], tf.zeros([2]), 0.5)],
                tf.constant(0, tf.int64),
                tf.constant(0, tf.int64),
                StepSettings(*map(tf.constant, (1.0, 0.9, 0.9)), 0.0),
                config(),
            )
        with tf.control_dependencies([staleness]):
            return [tf.identity(one) for one in before]

    before = values(server)
    for read, expected in zip(step(), before, strict=True):
        np.testing.assert_array_equal(read, expected)
    assert server.weights[0].numpy().tolist() == [0.0] * 3
    assert server.averages[0].numpy().tolist() == [0.5] * 2


def on_threads(num_threads: int, work: Callable[[int], None]) -> None:
    """Runs a function with the number of each thread, all at the same time."""
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, range(num_threads)))


@pytest.mark.parametrize("nesterov", [False, True])
@WAYS
def test_updates_at_the_same_time_are_not_lost(way, nesterov):
    num_threads, num_updates_each = 8, 25
    server = make_server([np.zeros(5000), np.zeros(3)], [np.zeros(4)])
    facts = {"statistics": [np.zeros(4)], "nesterov": nesterov, "way": way}
    staleness: list[int] = []
    barrier = threading.Barrier(num_threads)

    def work(thread: int) -> None:
        barrier.wait()
        for i in range(num_updates_each):
            gradients = [np.full(5000, thread + 1), np.full(3, i + 1)]
            staleness.append(
                update(server, gradients, thread + i * num_threads, **facts)
            )

    on_threads(num_threads, work)
    num_all = num_threads * num_updates_each
    assert len(staleness) == num_all
    assert min(staleness) >= 0
    assert num_updates(server) == num_all
    # Whole numbers below 2**24, which float32 adds exactly.
    first, second = (one.numpy() for one in server.weights)
    np.testing.assert_array_equal(first, np.full(5000, -num_updates_each * 36))
    np.testing.assert_array_equal(second, np.full(3, -num_threads * 325))
    applied = server.applied.numpy()
    assert applied[1 : 1 + num_all].tolist() == list(range(1, num_all + 1))


def test_executions_of_one_closure_at_the_same_time_are_applied_once():
    server = make_server([np.zeros(5000)])
    results: list[int] = []
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        for number in range(10):
            barrier.wait()
            results.append(update(server, [np.ones(5000)], number))

    on_threads(8, work)
    assert results.count(ALREADY_APPLIED) == 70
    np.testing.assert_array_equal(server.weights[0].numpy(), np.full(5000, -10))


REFUSED = (tf.errors.InvalidArgumentError, ValueError)


def call_op(server: Any, **changed: Any) -> None:
    arguments = {
        "variables": [one.handle for one in server.weights],
        "velocities": [one.handle for one in server.velocities],
        "gradients": [tf.ones([3]), tf.ones([2])],
        "averages": [one.handle for one in server.averages],
        "statistics": [tf.zeros([4])],
        "applied": server.applied.handle,
        "number": tf.constant(5, tf.int64),
        "read_at": tf.constant(0, tf.int64),
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov_momentum": 0.9,
        "nesterov": False,
        "inverse_staleness": False,
        "average_step": 0.1,
        "weight_decays": [0.0, 0.0],
    }
    native.ops().resnet_server_update(**{**arguments, **changed})


def op_server() -> Any:
    return make_server([np.ones(3), np.ones(2)], [np.ones(4)])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gradients": [tf.ones([3]), tf.ones([3])]}, "variable 1 has the shape"),
        ({"statistics": [tf.ones([5])]}, "variable 0 has the shape"),
        ({"weight_decays": [0.0]}, "one value for each of 2 variables; got 1"),
        ({"weight_decays": []}, "one value for each of 2 variables; got 0"),
        ({"read_at": tf.constant([0], tf.int64)}, r"must be scalars; got \[1\]"),
        ({"momentum": [0.1, 0.1]}, r"must be scalars; got \[2\]"),
        ({"number": tf.constant(-1, tf.int64)}, "number at least 0"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(changed, words):
    server = op_server()
    before = values(server)
    with pytest.raises(REFUSED, match=words):
        call_op(server, **changed)
    assert_unchanged(server, before)
    call_op(server)  # No lock is held any longer.
    assert num_updates(server) == 1


@pytest.mark.parametrize("name", ["weights", "velocities", "averages", "applied"])
def test_variables_of_another_type_or_shape_are_refused(name):
    of_log = "applied must be a vector of at least 2 int64"
    for shape, dtype, words in (
        ([4, 1], tf.float32, "has the shape"),
        ([4 if name == "averages" else 3], tf.bfloat16, "must be float32"),
        ([1], tf.int64, "has the shape|must be float32"),
    ):
        server, wrong = op_server(), tf.Variable(tf.ones(shape, dtype))
        if name == "applied":
            server.applied, words = wrong, of_log
        else:
            getattr(server, name)[0] = wrong
        before = values(server)
        with pytest.raises(REFUSED, match=words):
            call_op(server)
        assert_unchanged(server, before)


@pytest.mark.parametrize("name", ["applied", "variables"])
def test_handles_must_be_scalars(name):
    server = op_server()
    handles = {
        "applied": tf.stack([server.applied.handle]),
        "variables": [tf.stack([one.handle]) for one in server.weights],
    }
    with pytest.raises(REFUSED, match=r"must be (scalars|a scalar)"):
        call_op(server, **{name: handles[name]})
    assert num_updates(server) == 0


@pytest.mark.parametrize("twice", [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (3, 6)])
def test_no_variable_is_taken_twice(twice):
    given = [tf.Variable(tf.ones([3])) for _ in range(6)]
    given.append(tf.Variable(tf.zeros([9], tf.int64)))
    given[twice[1]] = given[twice[0]]
    handles = [variable.handle for variable in given]
    names = ("variables", "velocities", "averages")
    changed = {name: handles[2 * i : 2 * i + 2] for i, name in enumerate(names)}
    ones = [tf.ones([3])] * 2
    changed |= {"gradients": ones, "statistics": ones, "applied": handles[6]}
    with pytest.raises(REFUSED, match="must be distinct"):
        call_op(op_server(), **changed)
