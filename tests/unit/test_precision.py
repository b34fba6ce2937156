from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import precision

ALONE = Communicator(ProcessInfo())


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """What is logged, each line led by its level."""
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(
            precision.logging,
            level,
            lambda text, lead=level: lines.append(f"{lead}: {text}"),
        )
    return lines


@pytest.fixture
def measure(monkeypatch):
    """Returns a function that sets the measured times."""
    is_widened = [False]
    monkeypatch.setattr(native, "has_two_bf16_products", lambda: True)
    monkeypatch.setattr(native, "widen_bf16", lambda on: is_widened.__setitem__(0, on))

    def set_seconds(
        float32: float, bf16: float, widened: float = 9.0
    ) -> Callable[[], bool]:
        def seconds(dtype: tf.DType) -> float:
            if dtype == tf.float32:
                return float32
            return widened if is_widened[0] else bf16

        monkeypatch.setattr(precision, "_seconds", seconds)
        return lambda: is_widened[0]

    return set_seconds


class Ranks:
    """A communicator whose other ranks measured these times."""

    def __init__(self, *others: tuple[float, float, float]) -> None:
        self.others = others

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        return values + np.sum(self.others, axis=0)


@pytest.mark.parametrize(
    ("bf16", "widened", "is_taken", "chosen"),
    [
        *((0.2, 9.0, False, "bf16"), (1.0, 9.0, False, "float32")),
        # Widened where that is clearly faster.
        *((1.0, 0.9, False, "float32"), (1.0, 0.7, True, "float32")),
        *((1.0, 0.4, True, "bf16"), (0.5, 9.0, False, "float32")),
    ],
)
def test_auto_takes_the_faster_one(measure, logged, bf16, widened, is_taken, chosen):
    is_widened = measure(float32=0.5, bf16=bf16, widened=widened)
    assert precision.choose("auto", ALONE) == chosen
    assert is_widened() == is_taken
    said = f"info: bf16 is multiplied as float32, {1 / widened:.2f} times"
    assert logged[0].startswith(said) == is_taken
    assert logged[-1].startswith(f"info: precision {chosen}")


def test_float32_is_not_measured(monkeypatch, logged):
    monkeypatch.setattr(precision, "_seconds", None)
    assert precision.choose("float32", ALONE) == "float32"
    assert logged == []


@pytest.mark.parametrize(
    ("has_bf16", "bf16", "lines"),
    [
        (True, 1.0, ["info: precision bf16"]),
        (True, 5.0, ["warning: float32 is faster here: bf16 convolutions take 2.50"]),
        (False, 1.0, ["warning: this CPU has no bf16", "info: precision bf16"]),
    ],
)
def test_bf16_is_taken_with_a_warning_where_it_is_slower(
    measure, logged, monkeypatch, has_bf16, bf16, lines
):
    monkeypatch.setattr(precision.cpu_features, "has_bf16", lambda features: has_bf16)
    measure(2.0, bf16)
    assert precision.choose("bf16", ALONE) == "bf16"
    for line, start in zip(logged, lines, strict=True):
        assert line.startswith(start)


def test_all_ranks_choose_by_the_sum_of_their_times(measure, logged):
    # Alone, the two would choose differently; together float32 takes 5 and bf16 4.
    measure(3.0, 1.0)
    assert precision.choose("auto", Ranks((2.0, 3.0, 9.0))) == "bf16"
    measure(2.0, 3.0)
    assert precision.choose("auto", Ranks((3.0, 1.0, 9.0))) == "bf16"
    is_widened = measure(float32=9.0, bf16=1.0, widened=2.0)
    assert precision.choose("bf16", Ranks((9.0, 4.0, 1.0))) == "bf16"
    assert is_widened()


def test_a_cpu_with_one_kind_of_bf16_products_measures_it_once(monkeypatch):
    calls = []
    monkeypatch.setattr(precision, "_seconds", lambda dtype: calls.append(dtype) or 2.0)
    monkeypatch.setattr(native, "has_two_bf16_products", lambda: False)
    assert precision._bf16_seconds() == (2.0, 2.0)
    assert calls == [tf.bfloat16]


def test_the_measurement_is_a_time_and_says_what_it_does(monkeypatch):
    notes = []
    monkeypatch.setattr(
        precision.logging,
        "log_every_n_seconds",
        lambda level, text, seconds: notes.append((level, text, seconds)),
    )
    assert 0 < precision._seconds(tf.float32) < 60
    # Asked before each measurement; of these, the log keeps one in so many seconds.
    level, text, seconds = notes[0]
    assert (level, seconds) == (precision.logging.INFO, 15)
    assert "float32" in text
    assert len(notes) == len(precision._PROBES) * precision._PROBE_REPEATS
