"""What training refuses, each time in one sentence and with exit code 2."""

import dataclasses
import io
import shutil
from pathlib import Path
from unittest import mock

import pytest
from PIL import Image

from data_prep.records import manifest
from resnet import resnet_main
from resnet.config.config import CONFIG_FILE, save_config
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.export import contents
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import jsonl
from resnet.runtime.preemption import Preempted
from resnet.runtime.run_lock import RunLock
from resnet.training import loop
from resnet.watchdog import history
from tests import in_process
from tests.in_process import Done, assert_refused, succeeded
from tests.unit.small_checkpoint import save


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that trains in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return lambda *flags: in_process.run(resnet_main, *flags)


@pytest.fixture
def run_on(run, tmp_path):
    """A function that trains on a record set with the recipe "digits"."""

    def run_on(records: Path, *flags: str) -> Done:
        folders = (f"--data_dir={records}", f"--model_dir={tmp_path / 'model'}")
        return run(*folders, "--recipe=digits", *flags)

    return run_on


@pytest.fixture(scope="session")
def write_set(write_tiny_set):
    """A function that writes a set of two classes, with shards of such sizes."""
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "JPEG")

    def write_set(folder, labels, sizes, splits=("train", "validation")) -> Path:
        folder.mkdir(exist_ok=True)
        images = [file.getvalue()] * len(labels)
        for split in splits:
            write_tiny_set(folder, images, labels, ("cat", "dog"), sizes, split=split)
        return folder

    return write_set


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, write_set) -> Path:
    return write_set(tmp_path_factory.mktemp("main"), [0, 1] * 4, [8])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--use_tpu=True", "--use_tpu must be False"),
        ("--recipe=tpu_90ep", "Did you mean tpu_90ep_24k or tpu_90ep_8k?"),
        ("--resnet_depth=51", "got resnet51. Did you mean resnet50"),
        ("--model=resnet18 --resnet_depth=50", "name two networks"),
        ("--train_steps=10 --warmup_steps=10", "the warmup must end before"),
        ("--weight_decay=tiny", "--weight_decay must be a number; got 'tiny'."),
        ("--first_phase=collapse", "--first_phase must be one of train; got collaps"),
        ("--stop_at=0.5 --mode=train", "needs --mode=train_and_eval; got"),
        ("--num_ranks=64", "--num_ranks is for --explain; mpirun -np says"),
        ("--explain_plot=plan.png", "--explain_plot is for --explain"),
        (
            "--export_dir=/dev/null/x --train_batch_size=4",
            "--export_dir must be a folder that can be written to; /dev/null",
        ),
        ("--num_intra_threads=-1", "--num_intra_threads must be in [0, 4096]; got -1"),
    ],
)
def test_a_bad_setting_is_refused(run_on, records, tmp_path, flags, words):
    assert_refused(run_on(records, *flags.split()), words)
    assert not (tmp_path / "model").exists()


def test_a_set_without_a_validation_split_cannot_be_evaluated_on_the_way(
    run_on, tmp_path, write_set
):
    records = write_set(tmp_path / "records", [0, 1] * 4, [8], splits=("train",))
    flags = ("--train_batch_size=4", "--eval_every=1epoch")
    for more in ((), ("--explain",)):
        done = run_on(records, *flags, *more)
        assert_refused(done, "needs a validation split")
    done = run_on(records, "--train_batch_size=4", "--explain")
    assert "evaluation   after the last step, " in done.stdout
    assert "--validation_fraction=0.1" in done.stderr
    done = run_on(records, "--train_batch_size=4", "--explain", "--mode=train")
    assert "evaluation   none\n" in done.stdout
    assert "--validation_fraction" not in done.stderr


def test_own_images_are_planned_by_their_number_and_sizes(run, records, tmp_path):
    copy = shutil.copytree(records, tmp_path / "records")
    flags = ("--explain", f"--data_dir={copy}")
    assert_refused(run(*flags, "--recipe=own"), "has no median_side")
    assert_refused(run("--explain", "--recipe=own"), "follows from the data set")
    path = copy / manifest.FILE_NAME
    path.write_text(path.read_text().replace('"median_side": 0', '"median_side": 40'))
    done = succeeded(run(*flags, "--recipe=own", "--num_ranks=2"))
    assert "global batch 8 = 2 ranks x 4" in done.stdout
    assert "start at most 1 rank, or give" in " ".join(done.stdout.split())
    assert "at the end of the training: the median" in done.stdout
    assert_refused(run(*flags, "--recipe=own", "--num_ranks=16"), "Start fewer ranks")


def test_without_a_recipe_a_small_set_is_told_the_fitting_one(run, records, tmp_path):
    flags = (f"--data_dir={records}", f"--model_dir={tmp_path / 'model'}")
    for more in ((), ("--explain",)):
        assert_refused(run(*flags, *more), "Lower it, or take --recipe=own")
    sized = (*flags, "--train_batch_size=4", "--train_steps=20", "--explain")
    done = succeeded(run(*sized))
    assert "has 8 training images: --recipe=own fits it" in done.stderr
    assert "fits it" not in run(*sized, "--recipe=digits").stderr


def test_folders_that_are_missing_or_those_of_the_data_are_refused(run, records):
    assert_refused(run(), "--data_dir is required")
    assert "imagenet_to_tfrecords.py" in run().stderr
    assert "--help" in run().stderr
    assert_refused(run("--data_dir=here"), "--model_dir is required")
    for model_dir in (records, f"{records}/train/.."):
        done = run(f"--data_dir={records}", f"--model_dir={model_dir}")
        assert_refused(done, "--data_dir and --model_dir must be different folders")
    done = run(f"--data_dir={records}", f"--model_dir={records}/train/")
    assert_refused(done, "--model_dir must not be a folder of records")


def test_a_file_as_the_folder_of_a_run_is_refused(run, records, tmp_path):
    (tmp_path / "file").touch()
    for model_dir in (tmp_path / "file", tmp_path / "file/model"):
        flags = (f"--data_dir={records}", f"--model_dir={model_dir}")
        done = run(*flags, "--train_batch_size=4")
        assert_refused(done, "--model_dir must be a folder; ")
        assert "Errno" not in done.stderr


def test_a_data_dir_without_records_is_refused(run_on, tmp_path):
    assert_refused(run_on("nowhere"), "nowhere")
    assert_refused(run_on(tmp_path), "imagenet_to_tfrecords.py")
    assert_refused(run_on(tmp_path / ("n" * 300)), "File name too long")


def test_a_set_that_is_not_as_its_manifest_says_is_refused(run_on, records, tmp_path):
    copy = shutil.copytree(records, tmp_path / "records")
    shard = min((copy / "train").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    assert_refused(run_on(copy, "--train_batch_size=4"), shard.name)
    shard.unlink()
    done = run_on(copy, "--train_batch_size=4", "--shard_by=file")
    assert_refused(done, f"each shard on one node; train/{shard.name} is on no node")


def test_examples_of_one_class_are_refused(run_on, tmp_path, write_set):
    folder = write_set(tmp_path / "records", [1] * 8, [8])
    done = run_on(folder, "--train_batch_size=4")
    assert_refused(done, "at least two classes; all 8 training examples in")


def test_classes_that_are_not_mixed_over_the_files_are_refused(
    run_on, tmp_path, write_set
):
    folder = write_set(tmp_path / "records", [0] * 20 + [1] * 20, [20, 20])
    done = run_on(folder, "--train_batch_size=4")
    assert_refused(done, "are not shuffled across its 2 shards")
    # Where they needn't be, the next check is reached: whether the files are there.
    (folder / "train" / "train-00001-of-00002").unlink()
    done = run_on(folder, "--train_batch_size=4", "--require_mixed=False")
    assert_refused(done, "train-00001-of-00002 can't be read")


def test_a_folder_that_another_job_holds_is_refused_and_the_supervisor_told(
    run_on, records, tmp_path
):
    (tmp_path / "model").mkdir()
    lock = RunLock(tmp_path / "model")
    done = run_on(records, "--train_batch_size=8")
    lock.release()
    assert_refused(done, "is locked by another job")
    found = history.read_failure(tmp_path / "model")
    assert found["locked"] is True
    assert found["reason"] in done.stderr


@pytest.mark.parametrize("is_locked", [True, False])
def test_the_failure_of_a_refused_start_does_not_stay_beside_the_run(
    make_config, tmp_path, is_locked
):
    config = make_config(12, ("a", "b"), global_batch_size=6, model_dir=str(tmp_path))
    with resnet_main.recorded(config, Communicator(ProcessInfo())):
        history.write_failure(tmp_path, "the reason", is_locked)
    assert (history.read_failure(tmp_path) is None) == is_locked


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_mistake_that_ends_the_training_is_recorded(make_config, tmp_path, is_moved):
    folder = tmp_path / "model"
    config = make_config(12, ("a", "b"), global_batch_size=6, model_dir=str(folder))
    folder.mkdir()

    def fail() -> None:
        with resnet_main.recorded(config, Communicator(ProcessInfo())):
            if is_moved:
                folder.rename(tmp_path / "moved")
            raise AgreedError("the folder of the run was moved after step 3")

    with pytest.raises(AgreedError):
        fail()
    assert folder.exists() is not is_moved
    if not is_moved:
        assert history.read_failure(folder)["step"] == 3
        assert [event["event"] for event in history.read(folder)[0]] == ["failure"]


def test_a_file_in_the_place_of_the_checkpoints_is_refused(run_on, records, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "checkpoints").touch()
    done = run_on(records, "--train_batch_size=8")
    assert_refused(done, "model/checkpoints, in which the checkpoints are saved, must")


@pytest.mark.parametrize("is_there", [False, True])
def test_the_settings_of_the_checkpoints_count_and_others_are_not_written(
    run_on, records, tmp_path, make_config, is_there
):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    config = make_config(num_train_examples=8, seed=1)
    save(model_dir, 1, config=dataclasses.asdict(config))
    wrong = dataclasses.replace(config, model_dir=str(model_dir), seed=2)
    if is_there:
        save_config(wrong)
    done = run_on(records, "--train_batch_size=8", "--seed=2")
    assert_refused(done, "holds a run with other settings")
    assert "seed=1, now 2" in done.stderr
    assert (model_dir / CONFIG_FILE).exists() == is_there


def test_an_ended_run_without_its_checkpoints_is_refused(run_on, records, tmp_path):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    line = jsonl.encode(jsonl.make_line("eval", 2, 1.0, {"top1": 0.5}))
    (model_dir / jsonl.FILE).write_text(line)
    history.append(model_dir, "end", step=2, reason="the training is done")
    done = run_on(records, "--train_batch_size=8")
    assert_refused(done, "must have the checkpoints of its run, which has ended after")
    assert (model_dir / jsonl.FILE).read_text() == line


def test_other_records_are_refused_at_a_resume_and_while_a_run_lasts(
    run_on, records, tmp_path, write_set, monkeypatch
):
    written_meanwhile: list[bytes] = []

    def train(run, job):
        save(run.folder, 1, config=dataclasses.asdict(run.config))
        run.verify_records(job.communicator)
        for content in written_meanwhile:
            Path(run.train.records.paths[0]).write_bytes(content)
            run.verify_records(job.communicator)
        return False

    monkeypatch.setattr(loop, "train_and_evaluate", train)
    before = shutil.copytree(records, tmp_path / "before")
    assert run_on(before, "--train_batch_size=8").returncode == 0
    anew = write_set(tmp_path / "anew", [1, 0] * 4, [8])  # In another order.
    done = run_on(anew, "--train_batch_size=8")
    assert_refused(done, "holds a run with other settings (train_records_sha256=")
    moved = before.rename(tmp_path / "moved")
    assert run_on(moved, "--train_batch_size=8").returncode == 0
    written_meanwhile += [path.read_bytes() for path in (anew / "train").iterdir()]
    done = run_on(moved, "--train_batch_size=8")
    assert done.returncode == 2
    assert "must be the file that manifest.json describes, with SHA" in done.stderr


def test_a_run_keeps_the_window_of_its_data_set(run_on, records, tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(
        loop, "train_and_evaluate", lambda run, job: used.append(run.config)
    )
    copy = shutil.copytree(records, tmp_path / "records")
    path = copy / manifest.FILE_NAME
    text = path.read_text().replace('"depth_window": []', '"depth_window": [5, 9]')
    path.write_text(text)
    run_on(copy, "--train_batch_size=8")
    assert [config.depth_window for config in used] == [(5, 9)]
    described = contents.of_run(used[0])
    assert described.encoding.depth_window == (5, 9)
    assert contents.from_text(described.as_json(), "x") == described


def test_the_weights_of_classes_are_part_of_the_run(
    run_on, tmp_path, write_set, monkeypatch
):
    used = []

    def train(run, job):
        used.append(run.config.class_weight_values)
        save(run.folder, 1, config=dataclasses.asdict(run.config))
        return False

    monkeypatch.setattr(loop, "train_and_evaluate", train)
    records = write_set(tmp_path / "records", [0, 1, 0, 0, 0, 1, 0, 0], [8])
    flags = ("--train_batch_size=8", "--class_weights")
    done = run_on(records, *flags, "balanced")
    assert used == [pytest.approx((8 / (2 * 6), 8 / (2 * 2)))]
    assert "from 0.6667 (cat) to 2 (dog)" in done.stderr
    path = tmp_path / "weights.csv"
    path.write_text(f"cat,{2 / 3!r}\ndog,2.0")
    assert run_on(records, *flags, str(path)).returncode == 0  # They are the same.
    done = run_on(records, *flags, str(path), "--sampling=balanced")
    assert_refused(done, "other settings (sampling=natural, now balanced)")
    path.write_text("cat,1\ndog,2")
    done = run_on(records, *flags, str(path))
    assert_refused(done, "other settings (class_weight_values=(0.66")
    assert_refused(run_on(records, *flags, "ballanced"), "ballanced must hold a weight")


def test_a_complete_run_says_so_and_is_not_trained_again(
    run_on, records, tmp_path, monkeypatch
):
    starts = []

    def train(run, job):
        starts.append(run)
        settings = dataclasses.asdict(run.config)
        save(run.folder, run.config.train_steps, config=settings, eval={"top1": 0.25})
        return True

    monkeypatch.setattr(loop, "train_and_evaluate", train)
    monkeypatch.setattr(resnet_main, "export", lambda *_: None)
    flags = ("--train_batch_size=8", "--train_steps=3", "--warmup_steps=1")
    assert run_on(records, *flags).returncode == 0
    done = run_on(records, *flags, "--quiet")
    assert (done.returncode, len(starts)) == (0, 1)
    way = f"--initial_weights={tmp_path / 'model'} "
    for words in ("3 steps (3.00 epochs)", "25.00 %", way):
        assert words in done.stderr
    # What is left to do, is done.
    export_dir = tmp_path / "exports"
    assert run_on(records, *flags, f"--export_dir={export_dir}").returncode == 0
    assert len(starts) == 2
    longer = ("--train_batch_size=8", "--train_steps=4", "--warmup_steps=1")
    done = run_on(records, *longer)
    assert_refused(done, "holds a run of 3 steps")
    assert way in done.stderr


@pytest.mark.parametrize("end", [True, False, Preempted("stopped after step 3")])
def test_only_a_complete_training_is_exported(run_on, records, monkeypatch, end):
    exported = []
    monkeypatch.setattr(loop, "train_and_evaluate", mock.Mock(side_effect=[end]))
    monkeypatch.setattr(resnet_main, "export", lambda *_: exported.append(1))
    done = run_on(records, "--train_batch_size=8")
    assert done.returncode == (75 if isinstance(end, Preempted) else 0), done
    assert len(exported) == (end is True)
