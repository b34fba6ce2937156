import types

import numpy as np
import pytest
import tensorflow as tf

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import precision

ALONE = Communicator(ProcessInfo())


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """What is logged, each line led by its level."""
    lines: list[str] = []

    def log(level: str):
        return lambda text, *values: lines.append(f"{level}: {text % values}")

    monkeypatch.setattr(
        precision,
        "logging",
        types.SimpleNamespace(info=log("info"), warning=log("warning")),
    )
    return lines


@pytest.fixture
def measure(monkeypatch):
    """Returns a function that sets the measured times."""

    def set_seconds(float32: float, bf16: float) -> None:
        seconds = {tf.float32: float32, tf.bfloat16: bf16}
        monkeypatch.setattr(precision, "_seconds", seconds.__getitem__)

    return set_seconds


class Ranks:
    """A communicator whose other ranks measured these times."""

    def __init__(self, *others: tuple[float, float]) -> None:
        self.others = others

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        return values + np.sum(self.others, axis=0)


def has_bf16(monkeypatch, value: bool) -> None:
    monkeypatch.setattr(precision.cpu_features, "has_bf16", lambda features: value)


@pytest.mark.parametrize(
    ("float32", "bf16", "chosen"),
    [(3.0, 1.0, "bf16"), (1.0, 3.0, "float32"), (1.0, 1.0, "float32")],
)
def test_auto_takes_the_faster_one(measure, logged, float32, bf16, chosen):
    measure(float32, bf16)
    assert precision.choose("auto", ALONE) == chosen
    assert len(logged) == 1
    assert logged[0].startswith(f"info: precision {chosen}")


def test_float32_is_not_measured(monkeypatch, logged):
    monkeypatch.setattr(precision, "_seconds", None)
    assert precision.choose("float32", ALONE) == "float32"
    assert logged == []


def test_bf16_is_taken_with_a_warning_where_it_is_slower(measure, logged, monkeypatch):
    has_bf16(monkeypatch, True)
    measure(1.0, 2.5)
    assert precision.choose("bf16", ALONE) == "bf16"
    assert len(logged) == 1
    assert logged[0].startswith("warning: float32 is faster here")
    assert "2.50 times as long" in logged[0]


def test_bf16_is_taken_silently_where_it_is_faster(measure, logged, monkeypatch):
    has_bf16(monkeypatch, True)
    measure(2.0, 1.0)
    assert precision.choose("bf16", ALONE) == "bf16"
    assert logged == []


def test_a_cpu_without_bf16_is_warned_of(measure, logged, monkeypatch):
    has_bf16(monkeypatch, False)
    measure(2.0, 1.0)
    assert precision.choose("bf16", ALONE) == "bf16"
    assert logged == ["warning: this CPU has no bf16 instructions"]


def test_all_ranks_choose_by_the_sum_of_their_times(measure, logged):
    # Alone, the two would choose differently; together float32 takes 5 and bf16 4.
    measure(3.0, 1.0)
    assert precision.choose("auto", Ranks((2.0, 3.0))) == "bf16"
    measure(2.0, 3.0)
    assert precision.choose("auto", Ranks((3.0, 1.0))) == "bf16"


def test_the_measurement_is_a_time():
    assert 0 < precision._seconds(tf.float32) < 60
