"""Runs are verified: by one process, and by as many ranks as they had."""

import functools
import re
import shutil
from pathlib import Path

import pytest

from eval import verify
from resnet import resnet_main
from resnet.checkpoint import step_dirs
from resnet.metrics import jsonl
from resnet.watchdog import history
from tests.main_run import TRAINING_FLAGS


@pytest.fixture(scope="module")
def finished(run, records, new_folder):
    """Returns the folders of the records and of a run of 6 steps."""
    folder = new_folder("verified")
    folders = (f"--data_dir={records}", f"--model_dir={folder / 'model'}")
    more = ("--ema_decay=0.9", "--accumulation_steps=3")
    run(resnet_main, *TRAINING_FLAGS, *more, *folders)
    return records, folder / "model"


@pytest.fixture
def changed(finished, tmp_path, lockstep):
    """Returns copies of both, which a test changes, as flags."""
    for source, name in zip(finished, ("records", "model"), strict=True):
        copy = functools.partial(shutil.copytree, source, tmp_path / name)
        lockstep.from_rank_0(copy)
    return tmp_path / "records", tmp_path / "model"


def flags(records: Path, model: Path) -> tuple[str, str]:
    return f"--data_dir={records}", f"--model_dir={model}"


def test_receipts_follow_checkpoints(finished):
    lines, _ = jsonl.read_and_count(finished[1] / jsonl.FILE)
    receipts = [line for line in lines if line["kind"] == jsonl.RECEIPT]
    assert [line["step"] for line in receipts] == [3, 6]
    assert len({*receipts[0]["gradient_digests"]}) == 2
    assert receipts[0]["log_digest"] == jsonl.digest(lines[: lines.index(receipts[0])])
    assert "gradient_digests" not in receipts[1]


def test_one_process_confirms_the_gradients_of_all_ranks(run, finished):
    done = run(verify, *flags(*finished), is_alone=True)
    assert re.search(r"gradients, step 4, 2 ranks +confirmed", done.stdout)
    assert "wrong: 0; not decided: 0" in done.stdout


def test_as_many_ranks_confirm_the_whole_way(run, finished):
    done = run(verify, "--replay", *flags(*finished))
    for steps in ("1 to 3", "4 to 6"):
        assert re.search(rf"replay, steps {steps} +confirmed", done.stdout)
    events, _ = history.read(finished[1])
    assert events[-1]["event"] == "verification"


def change_metric(records: Path, model: Path) -> None:
    path = model / jsonl.FILE
    lines, _ = jsonl.read_and_count(path)
    lines[0]["loss"] += 0.001
    path.write_text("".join(map(jsonl.encode, lines)))


def change_setting(records: Path, model: Path) -> None:
    path = model / "config.json"
    path.write_text(path.read_text().replace('"ema_decay": 0.9', '"ema_decay": 0.99'))


def change_record(records: Path, model: Path) -> None:
    path = sorted((records / "train").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def change_checkpoint(records: Path, model: Path) -> None:
    path = step_dirs.of_step(model, 3) / "state.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (change_metric, "log, lines"),
        (change_setting, "settings, step 3"),
        (change_record, "training records"),
        (change_checkpoint, "state, step 3"),
    ],
)
def test_what_was_changed_is_found(run, changed, lockstep, change, what):
    lockstep.from_rank_0(lambda: change(*changed))
    has_records = change is not change_record
    share = "--share=0" if has_records else "--share=1"  # Then none are computed.
    done = run(verify, share, *flags(*changed), is_alone=True, code=1)
    assert has_records or re.search("gradients +only the records", done.stdout)
    assert re.search(rf"^{what}.* {{2}}(?!confirmed)", done.stdout, re.M)
    assert re.search(r"confirmed: \d+; wrong: [12];", done.stdout)


def test_another_number_of_ranks_is_refused(run, finished):
    done = run(verify, *flags(*finished), code=2)
    assert "got 2 ranks" in done.stderr
    done = run(verify, "--replay", *flags(*finished), is_alone=True, code=2)
    assert "as many ranks as the run had, 2; got 1" in done.stderr
