import errno
import json
import math
import os
import time

import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from resnet.base.errors import UserError
from resnet.metrics import jsonl
from resnet.metrics.event_file import EventFile
from resnet.metrics.log import MetricsLog

TRAIN = {"loss": 2.0, "learning_rate": 0.1, "images_per_second": 30.5}
EVAL = {"top1": 0.5, "top5": 0.75, "loss": 1.5, "count": 50_000}


def write_steps(model_dir, start_step: int, steps) -> None:
    log = MetricsLog(model_dir, start_step, rank=0)
    for step in steps:
        log.write("train", step, step / 10, {**TRAIN, "loss": float(step)})
    log.close()


def steps_in(model_dir) -> list[int]:
    return [one["step"] for one in jsonl.read(model_dir / jsonl.FILE)]


def test_each_line_is_one_json_object(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 10, 0.25, TRAIN)
    log.write("eval", 20, 0.5, EVAL)
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"kind": "train", "step": 10, "epoch": 0.25, **TRAIN},
        {"kind": "eval", "step": 20, "epoch": 0.5, **EVAL},
    ]


def test_a_line_is_in_the_file_before_the_log_is_closed(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, TRAIN)
    assert steps_in(tmp_path) == [1]
    log.close()


def test_what_is_read_is_what_was_written(tmp_path):
    write_steps(tmp_path, 0, [1, 2])
    assert jsonl.read(tmp_path / jsonl.FILE) == [
        {"kind": "train", "step": step, "epoch": step / 10, **TRAIN, "loss": step}
        for step in (1, 2)
    ]


def test_going_back_drops_the_lines_after_the_step(tmp_path):
    write_steps(tmp_path, 0, [1, 2, 3, 4])
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("was_evaluated", "kinds"),
    [(True, ["train", "eval", "eval_ema"]), (False, ["train"])],
)
def test_an_evaluation_that_will_be_done_again_is_dropped(
    tmp_path, was_evaluated, kinds
):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("eval", 1, 0.1, EVAL)
    for kind in ("train", "eval", "eval_ema"):
        log.write(kind, 2, 0.2, TRAIN)
    log.close()
    MetricsLog(tmp_path, 2, rank=0, was_evaluated=was_evaluated).close()
    found = jsonl.read(tmp_path / jsonl.FILE)
    kept = [(line["kind"], line["step"]) for line in found]
    assert kept == [("eval", 1), *((kind, 2) for kind in kinds)]


def test_going_on_keeps_all_lines(tmp_path):
    write_steps(tmp_path, 0, [1, 2])
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("cut", ["", "{", '{"kind": "train", "step": 3', '{"a": 1}'])
def test_a_cut_last_line_is_left_out_and_not_glued_to_the_next(tmp_path, cut):
    write_steps(tmp_path, 0, [1, 2])
    with (tmp_path / jsonl.FILE).open("a") as file:
        file.write(cut)
    assert steps_in(tmp_path) == [1, 2]
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "damage",
    [
        b"\0" * 9,
        b'{"kind": "train", "st',
        b"\xff\xfe",
        b"",
        b"7",
        b'{"kind": "train"}',
        b'{"kind": 1, "step": 1}',
        b'{"kind": "train", "step": "1"}',
        b'{"kind": "train", "step": true}',
        b'{"kind": "train", "step": -1}',
        b'{"kind": "train", "step": 1%s}' % (b"0" * 30),
        b'{"kind": "train", "step": 1, "loss": null}',
        b'{"kind": "train", "step": 1, "loss": [1]}',
        b'{"kind": "train", "step": 1, "loss": {"a": 1}}',
        b'{"kind": "train", "step": 1, "loss": "1"}',
        b'{"kind": "train", "step": 1, "loss": 1%s}' % (b"0" * 400),
        b'{"kind": "../outside", "step": 1}',
        b'{"kind": "", "step": 1}',
        b"[" * 100_000,
    ],
    ids=lambda damage: repr(damage)[:60],
)
def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path, caplog, damage):
    write_steps(tmp_path, 0, [1, 2])
    path = tmp_path / jsonl.FILE
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, damage, damage, second, b""]))
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3
    assert f"2 line(s) of {path} can't be parsed" in caplog.text


def test_lines_that_are_missing_are_counted(tmp_path, caplog):
    write_steps(tmp_path, 0, [1, 2, 3])
    MetricsLog(tmp_path, 2, rank=0, num_expected=2).close()
    MetricsLog(tmp_path, 2, rank=0, num_expected=None).close()
    assert caplog.text == ""
    path = tmp_path / jsonl.FILE
    path.unlink()
    log = MetricsLog(tmp_path, 2, rank=0, num_expected=2)
    assert f"2 of the 2 lines of {path} up to step 2 are missing" in caplog.text
    assert log.num_lines == 0  # From now on, nothing more is missing.
    log.write("train", 3, 0.1, {"loss": 1.0})
    assert log.num_lines == 1
    log.close()


def test_without_damage_nothing_is_warned_of(tmp_path, caplog):
    write_steps(tmp_path, 0, [1, 2])
    write_steps(tmp_path, 2, [3])
    assert caplog.text == ""


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    (tmp_path / jsonl.FILE).mkdir()
    with pytest.raises(UserError, match=r"can't be read and written: Is a directory"):
        MetricsLog(tmp_path, 0, rank=0)


def test_a_full_disk_at_the_start_is_a_sentence_and_the_lines_stay(
    tmp_path, monkeypatch
):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_steps(tmp_path, 0, [1, 2])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        MetricsLog(tmp_path, 1, rank=0)
    assert steps_in(tmp_path) == [1, 2]


def test_other_ranks_write_nothing(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=1)
    log.write("train", 1, 0.1, TRAIN)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_floats_keep_seven_digits_and_other_numbers_all():
    line = jsonl.make_line(
        "eval",
        123_456_789,
        1 / 3,
        {"loss": 1 / 3, "top1": 123456.789, "count": 123_456_789, "bad": math.inf},
    )
    assert line == {
        "kind": "eval",
        "step": 123_456_789,
        "epoch": 0.3333,
        "loss": 0.3333333,
        "top1": 123456.8,
        "count": 123_456_789,
        "bad": math.inf,
    }
    assert jsonl.encode({"step": 1}) == '{"step": 1}\n'


def events(folder) -> dict[tuple[str, int], float]:
    found = {}
    for path in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_tensorboard_can_read_the_numbers(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 10, 0.25, TRAIN)
    log.write("eval", 20, 0.5, EVAL)
    log.close()
    # All of these numbers but 0.1 are exact in a float32.
    assert events(tmp_path / "tensorboard" / "train") == {
        ("loss", 10): 2.0,
        ("learning_rate", 10): pytest.approx(0.1),
        ("images_per_second", 10): 30.5,
    }
    assert events(tmp_path / "tensorboard" / "eval") == {
        ("top1", 20): 0.5,
        ("top5", 20): 0.75,
        ("loss", 20): 1.5,
        ("count", 20): 50_000,
    }


def test_the_average_of_the_weights_has_curves_of_its_own(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("eval", 20, 0.5, EVAL)
    log.write("eval_ema", 20, 0.5, {**EVAL, "top1": 0.625})
    log.close()
    assert steps_in(tmp_path) == [20, 20]
    top1s = {
        kind: events(tmp_path / "tensorboard" / kind)["top1", 20]
        for kind in ("eval", "eval_ema")
    }
    assert top1s == {"eval": 0.5, "eval_ema": 0.625}


def test_curves_that_cannot_be_written_end_no_run(tmp_path, monkeypatch):
    def full(*arguments, **facts):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, TRAIN)
    for action in ("write", "flush", "close"):
        monkeypatch.setattr(tf.io.TFRecordWriter, action, full)
    for kind in ("train", "eval"):  # Of an open file, and of one that isn't there yet.
        log.write(kind, 2, 0.2, TRAIN)
    log.close()
    assert steps_in(tmp_path) == [1, 2, 2]


def test_going_back_gives_tensorboard_each_step_once(tmp_path):
    write_steps(tmp_path, 0, [1, 2, 3, 4])
    write_steps(tmp_path, 2, [3])
    found = events(tmp_path / "tensorboard" / "train")
    assert sorted(step for name, step in found if name == "loss") == [1, 2, 3]
    assert len(list((tmp_path / "tensorboard" / "train").iterdir())) == 1


def test_events_are_written_again_with_the_times_of_their_lines(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, {"loss": 2.0, "time": 1_000_000_000.5})
    log.write("train", 2, 0.2, {"loss": 1.0})  # As older versions wrote it.
    log.close()
    before = time.time()
    MetricsLog(tmp_path, 2, rank=0).close()
    (path,) = (tmp_path / "tensorboard" / "train").iterdir()
    version, first, second = tf.compat.v1.train.summary_iterator(str(path))
    assert version.file_version == "brain.Event:2"
    assert (first.step, first.wall_time) == (1, 1_000_000_000.5)
    assert second.wall_time >= before


def test_events_have_the_form_of_those_of_tensorflow(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "expected")).as_default(7):
        tf.summary.scalar("loss", 2.5)
    file = EventFile(tmp_path / "ours")
    file.add({"kind": "train", "step": 7, "epoch": 1.0, "loss": 2.5})
    file.close()
    ours, expected = (
        [
            list(tf.compat.v1.train.summary_iterator(str(path)))
            for path in folder.iterdir()
        ]
        for folder in (tmp_path / "ours", tmp_path / "expected")
    )
    ((_, our_event),), ((_, event),) = ours, expected
    assert our_event.step == event.step
    (our_value,), (value,) = our_event.summary.value, event.summary.value
    assert (our_value.tag, our_value.metadata) == (value.tag, value.metadata)
    our_tensor, tensor = map(tf.make_ndarray, (our_value.tensor, value.tensor))
    assert (our_tensor.shape, our_tensor.dtype) == (tensor.shape, tensor.dtype)
    assert our_tensor == tensor


def test_numbers_that_no_float32_can_hold_are_infinite_in_tensorboard(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, {"loss": 1e300, "count": 10**100, "lost": math.nan})
    log.close()
    found = events(tmp_path / "tensorboard" / "train")
    assert (found["loss", 1], found["count", 1]) == (math.inf, math.inf)
    assert math.isnan(found["lost", 1])
