import errno
import math
import os
import types
from contextlib import closing
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator,
)
from tensorflow.core.util import event_pb2

from eval import verify
from resnet.base.errors import UserError
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import jsonl, metrics_log, run_log
from resnet.metrics.metrics_log import AppendFile, EventFile, MetricsLog
from resnet.metrics.run_log import RunLog
from resnet.watchdog.client import WatchdogClient
from tests.unit.failing_calls import failing

TRAIN = {"loss": 2.0, "learning_rate": 0.1, "images_per_second": 30.5}
EVAL = {"top1": 0.5, "top5": 0.75, "loss": 1.5, "count": 50_000}


def write_steps(model_dir, start_step: int, steps) -> None:
    log = MetricsLog(model_dir, start_step, rank=0)
    for step in steps:
        log.write("train", step, step / 10, {**TRAIN, "loss": float(step)})
    log.close()


def steps_in(model_dir) -> list[int]:
    return [line["step"] for line in jsonl.read(model_dir / jsonl.FILE)]


def test_resuming_drops_the_lines_after_the_step(tmp_path, caplog):
    write_steps(tmp_path, 0, [1, 2, 3, 4])
    write_steps(tmp_path, 2, [3])
    write_steps(tmp_path, 3, [4])
    assert steps_in(tmp_path) == [1, 2, 3, 4]
    assert caplog.text == ""
    folder = tmp_path / "tensorboard" / "train"
    losses = [step for name, step in events(folder) if name == "loss"]
    assert sorted(losses) == [1, 2, 3, 4]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("was_evaluated", [True, False])
def test_an_evaluation_that_will_be_done_again_is_dropped(tmp_path, was_evaluated):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("eval", 1, 0.1, EVAL)
    for kind in ("train", "eval", "eval_ema"):
        log.write(kind, 2, 0.2, TRAIN)
    log.close()
    MetricsLog(tmp_path, 2, rank=0, was_evaluated=was_evaluated).close()
    kept = [line["kind"] for line in jsonl.read(tmp_path / jsonl.FILE)]
    assert kept == ["eval", "train", *(["eval", "eval_ema"] * was_evaluated)]


def test_a_cut_last_line_is_left_out_and_not_glued_to_the_next(tmp_path):
    write_steps(tmp_path, 0, [1, 2])
    with (tmp_path / jsonl.FILE).open("a") as file:
        file.write('{"kind": "train", "step": 3')
    assert steps_in(tmp_path) == [1, 2]
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]


GOOD = '"kind": "train", "step": 1'
DAMAGED = (
    "",
    "7",
    '{"kind": "train"}',
    '{"kind": 1, "step": 1}',
    '{"kind": "train", "step": true}',
    '{"kind": "train", "step": -1}',
    f'{{"kind": "train", "step": 1{"0" * 30}}}',
    f'{{{GOOD}, "loss": null}}',
    f'{{{GOOD}, "loss": [1]}}',
    f'{{{GOOD}, "loss": 1{"0" * 400}}}',
    '{"kind": "../outside", "step": 1}',
)


def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path, caplog):
    write_steps(tmp_path, 0, [1, 2])
    path = tmp_path / jsonl.FILE
    first, second, _ = path.read_bytes().split(b"\n")
    for damage in DAMAGED:
        path.write_bytes(b"\n".join([first, *2 * [damage.encode()], second, b""]))
        lines, num_unreadable = jsonl.read_and_count(path)
        assert ([line["step"] for line in lines], num_unreadable) == ([1, 2], 2)
    write_steps(tmp_path, 2, [3])
    assert steps_in(tmp_path) == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3
    assert f"lines of {path} that can't be parsed: 2" in caplog.text


def test_lines_that_are_missing_are_counted(tmp_path, caplog):
    write_steps(tmp_path, 0, [1, 2, 3])
    MetricsLog(tmp_path, 9, rank=1).close()  # Does nothing.
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


def test_a_file_that_cannot_be_used_is_a_sentence_and_its_lines_stay(
    tmp_path, monkeypatch
):
    (tmp_path / "folder" / jsonl.FILE).mkdir(parents=True)
    with pytest.raises(UserError, match=r"can't be read and written: Is a directory"):
        MetricsLog(tmp_path / "folder", 0, rank=0)
    write_steps(tmp_path, 0, [1, 2])
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(UserError, match="No space left on device"):
        MetricsLog(tmp_path, 1, rank=0)
    assert steps_in(tmp_path) == [1, 2]


def test_floats_keep_seven_digits_and_other_numbers_all():
    numbers = {"loss": 1 / 3, "top1": 123456.789, "count": 123_456_789, "bad": math.inf}
    line = jsonl.make_line("eval", 123_456_789, 1 / 3, numbers)
    rounded = {"loss": 0.3333333, "top1": 123456.8}
    step = {"kind": "eval", "step": 123_456_789, "epoch": 0.3333}
    assert line == {**step, **numbers, **rounded}
    assert jsonl.encode({"step": 1}) == '{"step": 1}\n'


def events(folder) -> dict[tuple[str, int], float]:
    numbers = {}
    for path in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                numbers[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return numbers


def test_tensorboard_can_read_the_numbers_of_each_kind(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    huge = {"loss": 1e300, "count": 10**100}  # No float32 can hold these.
    log.write("train", 10, 0.25, TRAIN)
    log.write("eval_ema", 20, 0.5, huge)
    log.close()
    folder = tmp_path / "tensorboard"
    expected = {(name, 10): pytest.approx(value) for name, value in TRAIN.items()}
    assert events(folder / "train") == expected
    assert events(folder / "eval_ema") == {(name, 20): math.inf for name in huge}


def test_curves_that_cannot_be_written_end_no_run(tmp_path, monkeypatch):
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, TRAIN)
    for action in ("write", "flush", "close"):
        failing_action = mock.Mock(side_effect=full)
        monkeypatch.setattr(tf.io.TFRecordWriter, action, failing_action)
    for kind in ("train", "eval"):  # Of an open file, and of one that isn't there yet.
        log.write(kind, 2, 0.2, TRAIN)
    log.close()
    assert steps_in(tmp_path) == [1, 2, 2]


def test_events_are_written_again_with_the_times_of_their_lines(tmp_path):
    log = MetricsLog(tmp_path, 0, rank=0)
    log.write("train", 1, 0.1, {"loss": 2.0, "time": 1_000_000_000.5})
    log.close()
    MetricsLog(tmp_path, 2, rank=0).close()
    (path,) = (tmp_path / "tensorboard" / "train").iterdir()
    version, start, event = tf.compat.v1.train.summary_iterator(str(path))
    assert (start.step, start.session_log.status) == (0, event_pb2.SessionLog.START)
    assert version.file_version == "brain.Event:2"
    assert (event.step, event.wall_time) == (1, 1_000_000_000.5)


def test_a_tensorboard_that_runs_meanwhile_shows_no_step_twice(tmp_path, monkeypatch):
    shown = EventAccumulator(str(tmp_path / "tensorboard" / "train"))
    write_steps(tmp_path, 0, [1, 2, 3])
    assert [event.step for event in shown.Reload().Tensors("loss")] == [1, 2, 3]
    monkeypatch.setattr(os, "getpid", lambda: 9_999_999)  # Its file is a later one.
    write_steps(tmp_path, 2, [3, 4])
    assert [event.step for event in shown.Reload().Tensors("loss")] == [1, 2, 3, 4]


def test_events_have_the_form_of_those_of_tensorflow(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "expected")).as_default(7):
        tf.summary.scalar("loss", 2.5)
    file = EventFile(tmp_path / "ours")
    file.add({"kind": "train", "step": 7, "epoch": 1.0, "loss": 2.5})
    file.writer.close()
    values = []
    for folder in ("ours", "expected"):
        (path,) = (tmp_path / folder).iterdir()
        *_, event = tf.compat.v1.train.summary_iterator(str(path))
        (value,) = event.summary.value
        array = tf.make_ndarray(value.tensor)
        form = (event.step, value.tag, value.metadata, array.shape, array.dtype)
        values.append((*form, array.item()))
    assert values[0] == values[1]


class Disk:
    """A file of which only so many bytes have room."""

    def __init__(self, file, room: int, closes: bool = True) -> None:
        self.file, self.room, self.closes = file, room, closes
        self.fileno = file.fileno

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_bytes = self.file.write(data[: self.room])
        self.room -= num_bytes
        return num_bytes

    def close(self) -> None:
        self.file.close()
        if not self.closes:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_what_a_full_disk_refuses_comes_later_and_in_order(tmp_path, caplog):
    path = tmp_path / "log"
    path.write_text("old\n")
    file = AppendFile(path)
    file._file = disk = Disk(file._file, 6)
    for line in ("1234\n", "5678\n", "90\n"):
        file.write(line)
    assert path.read_text() == "old\n1234\n5"
    assert caplog.text.count("can't be written (No space left on device)") == 1
    disk.room = 7
    file.write("")
    file.write("1\n")  # Each time that it fills up is said.
    assert caplog.text.count("can't be written") == 2
    disk.room = 100
    file.close()
    assert path.read_text() == "old\n1234\n5678\n90\n1\n"


def test_a_file_that_is_removed_or_replaced_gets_all_its_lines_again(
    tmp_path, monkeypatch, caplog
):
    path, other = tmp_path / "log", tmp_path / "other"
    path.write_text("old\n")
    file = AppendFile(path)
    file.write("1\n")
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(metrics_log, "atomic_write_bytes", failing(errno.ENOSPC))
        file.write("2\n")
    assert not path.exists()
    file.write("3\n")
    assert path.read_text() == "old\n1\n2\n3\n"
    other.write_text("of an editor\n")
    other.rename(path)
    file.close()
    assert path.read_text() == "old\n1\n2\n3\n"
    (replaced,) = tmp_path.glob("log.replaced-*")
    assert replaced.read_text() == "of an editor\n"
    assert caplog.text.count("was removed or replaced, and is restored") == 2


def test_all_lines_are_on_disk_after_a_sync(tmp_path, monkeypatch):
    path = tmp_path / "log"
    file = AppendFile(path)
    file._file = disk = Disk(file._file, 0)
    file.write("1\n")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_text()))
    disk.room = 100
    file.write("", is_synced=True)
    file.close()
    assert synced == ["1\n"]


def test_a_disk_that_fails_at_the_end_ends_no_run_and_is_named(
    tmp_path, monkeypatch, caplog
):
    file = AppendFile(tmp_path / "log")
    file.write("1\n")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    file.write("", is_synced=True)
    problem = f"{tmp_path / 'log'} can't be written (Input/output error). Its last"
    assert problem in caplog.text
    file._file = Disk(file._file, 100, closes=False)
    file.close()
    assert (tmp_path / "log").read_text() == "1\n"
    file = AppendFile(tmp_path / "log")
    file._file = Disk(file._file, 100, closes=False)
    file.close()
    assert f"{tmp_path / 'log'} can't be written (Disk quota exceeded)" in caplog.text


def test_a_disk_that_hangs_is_what_rank_0_says_that_it_waits_for(
    make_config, tmp_path, monkeypatch
):
    sent: list[dict] = []
    ranks = Communicator(ProcessInfo())
    ranks._watchdog = object.__new__(WatchdogClient)
    ranks._watchdog._channel = types.SimpleNamespace(send=sent.append)
    config = make_config(model_dir=str(tmp_path), record_log=str(tmp_path / "log"))
    state = types.SimpleNamespace(step=7, best_value=None, num_log_lines=None)
    log = RunLog(config, state, ranks)
    during = []
    write = AppendFile.write

    def note_status(*arguments, **options) -> None:
        during.append((sent[-1]["status"], sent[-1]["waits_for_others"]))
        write(*arguments, **options)

    monkeypatch.setattr(AppendFile, "write", note_status)
    sent.clear()
    ranks.report_status("computing step 8", waits_for_others=True)
    log.examples_read(7, np.arange(2), np.ones(2, bool))
    log.evaluated("eval", {"top1": 0.5}, 1.0, "done")
    log.sync()
    metrics = ("writing the metrics of step 7", False)
    assert during == [("writing the record log of step 8", False), metrics, metrics]
    assert sent[-1] == sent[0]  # It computes.
    log.close()


@pytest.mark.parametrize("verbosity", [absl_logging.WARNING, absl_logging.INFO])
def test_a_quiet_run_prints_its_last_evaluation_alone(
    make_config, tmp_path, capsys, verbosity
):
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(verbosity)
    try:
        state = types.SimpleNamespace(step=7, best_value=None, num_log_lines=None)
        config = make_config(model_dir=str(tmp_path))
        with closing(RunLog(config, state, Communicator(ProcessInfo()))) as log:
            log.evaluated("eval", {"top1": 0.25}, 1.0, "first")
            state.step = 8
            log.evaluated("eval", {"top1": 0.5}, 1.0, "last")
            log.training_ended(target_is_reached=False)
    finally:
        absl_logging.set_verbosity(before)
    first = "step 7: first\n" if verbosity == absl_logging.INFO else ""
    assert capsys.readouterr().err == f"{first}step 8: last\n"


def test_lines_have_the_digest_of_the_state_where_it_costs_under_half_a_percent(
    make_config, tmp_path, monkeypatch
):
    """It takes 2 s here, and the first line tells so."""
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])

    def digest_of_state(tensors) -> int:
        now[0] += 2
        return 77

    monkeypatch.setattr(run_log.digests, "digest_of_state", digest_of_state)
    state = types.SimpleNamespace(
        step=7, best_value=None, num_log_lines=None, tensors=dict, is_synchronized=True
    )
    ranks = Communicator(ProcessInfo())
    with closing(RunLog(make_config(model_dir=str(tmp_path)), state, ranks)) as log:
        found = []
        for seconds, is_synchronized in (
            (1, 1),
            (397, 1),
            (401, 1),
            (999, 0),
            (999, 1),
        ):
            now[0] += seconds
            state.is_synchronized = bool(is_synchronized)
            found.append(log._state_digest())
    digest = {"state_digest": 77}
    # The time since the line before includes that of its digest.
    assert found == [digest, {}, digest, {}, digest]


def test_the_first_step_whose_states_differ_is_named(tmp_path):
    """Lines without a digest in both logs, or outside the steps, don't count."""
    run = {2: 1, 4: 8, 6: None, 8: 5, 10: 3}
    again = {2: 9, 4: 8, 6: 7, 8: 6, 10: 4}
    for name, digests in (("run", run), ("again", again)):
        (tmp_path / name).mkdir()
        lines = []
        for step, digest in digests.items():
            numbers = {} if digest is None else {"state_digest": digest}
            lines.append(jsonl.make_line("train", step, 0.1, {"loss": 1.0, **numbers}))
        text = "".join(map(jsonl.encode, lines))
        (tmp_path / name / jsonl.FILE).write_text(text)
    folders = tmp_path / "run", tmp_path / "again"
    assert verify.first_difference(*folders, 2, 10) == 8
    assert verify.first_difference(*folders, 2, 8) == 8
    assert verify.first_difference(*folders, 2, 6) == 6
