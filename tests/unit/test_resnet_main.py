"""What the programs refuse, each time in one sentence and with exit code 2."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from resnet.runtime.run_lock import RunLock
from resnet.watchdog import failure_file

REPOSITORY = Path(__file__).resolve().parents[2]


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, REPOSITORY / program, *arguments],
        cwd=cwd,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def converted(folder: Path) -> Path:
    """Returns the records of a folder's images."""
    job = run(
        "data_prep/imagenet_to_tfrecords.py",
        f"--raw_data_dir={folder / 'raw'}",
        f"--local_scratch_dir={folder / 'records'}",
        cwd=folder,
    )
    assert job.returncode == 0, job.stderr
    return folder / "records"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("main")
    for split in ("train", "validation"):
        for name in ("cat", "dog"):
            (folder / "raw" / split / name).mkdir(parents=True)
            for number in range(4):
                path = folder / "raw" / split / name / f"{number}.jpg"
                Image.new("RGB", (40, 40), (number, 9, 9)).save(path)
    return converted(folder)


@pytest.fixture
def records_of_training(records: Path, tmp_path: Path) -> Path:
    """The same without a validation split."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train").symlink_to(records.parent / "raw" / "train")
    return converted(tmp_path)


def refusal(job: subprocess.CompletedProcess) -> str:
    """Returns the sentence of a refusal, after a look whether it is one."""
    assert job.returncode == 2, job.stderr
    assert job.stderr.startswith("error: ")
    assert job.stderr.count("\n") == 1
    assert "Traceback" not in job.stderr
    return job.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--use_tpu=True"], "--use_tpu must be False"),
        (["--recipe=tpu_90ep"], "expected a recipe among"),
        (["--model=resnet51"], "--model must be one of resnet8, resnet20, "),
        (["--resnet_depth=51"], "--model must be one of resnet8, resnet20, "),
        (["--model=resnet18", "--resnet_depth=50"], "name two networks"),
        (["--image_size=16"], "--image_size must be in [32, 1024]"),
        (["--train_batch_size=0"], "--train_batch_size must be at least 1; got 0"),
        (["--train_batch_size=-8"], "--train_batch_size must be at least 1; got -8"),
        (["--train_steps=10", "--warmup_steps=10"], "the warmup must end before"),
        (["--train_steps=10", "--train_epochs=1"], "exclude each other"),
        (["--peak_learning_rate=nan"], "--peak_learning_rate must be"),
        (["--base_learning_rate=-0.1"], "--base_learning_rate must be"),
        (["--weight_decay=inf"], "--weight_decay must be"),
        (["--momentum=1"], "--momentum must be"),
        (["--bn_momentum=1.5"], "--bn_momentum must be"),
        (["--label_smoothing=2"], "--label_smoothing must be"),
        (["--recipe=none.json"], "expected a recipe file: "),
        (
            ["--recipe=collapse_72ep_4k", "--weight_decay=1e-4"],
            "--weight_decay can't be one for the whole run: it differs among the 5",
        ),
        (["--recipe=collapse_72ep_4k", "--train_steps=4"], "must be at least 5, one"),
        (["--first_phase=collapse"], "--first_phase must be one of train; got collaps"),
        (["--accumulation_steps=0"], "--accumulation_steps must be at least 1; got 0"),
        (["--optimizer=adam"], "--optimizer must be one of momentum, lars; got adam"),
        (["--clip_norm=-1"], "--clip_norm must be at least 0; got -1.0"),
        (["--ema_decay=1"], "--ema_decay must be in [0, 1); got 1.0"),
        (["--mixup=-0.2"], "--mixup must be at least 0; got -0.2"),
        (["--cutmix=nan"], "--cutmix must be at least 0; got nan"),
        (["--random_augment=11"], "--random_augment must be in [0, 10]"),
        (["--eval_every=10minutes"], "--eval_every must be a number of steps or epoch"),
        (["--stop_at_top1=76"], "--stop_at_top1 must be in [0, 1]"),
        (["--stop_at_top1=0.5", "--mode=train"], "need --mode=train_and_eval; got"),
        (["--num_ranks=64"], "--num_ranks is for --explain; mpirun -np says"),
        (["--explain_plot=plan.png"], "--explain_plot is for --explain"),
        (["--precision=fp8"], "--precision must be one of float32, bf16, auto"),
        (["--mode=eval"], "--mode must be one of train, train_and_eval"),
        (["--eval_crop=middle"], "--eval_crop must be one of crop_then_resize, "),
        (["--shard_by=node"], "--shard_by must be one of example, file"),
        (["--on_bad_record=stop"], "--on_bad_record must be one of fail, skip"),
        (["--decoded_cache_mb=-1"], "--decoded_cache_mb must be at least 0; got -1"),
        (["--seed=-1"], "--seed must be"),
        (["--num_intra_threads=-1"], "--num_intra_threads must be at least 0"),
        (["--eval_batch_size=0"], "--eval_batch_size must be at least 1"),
        (["--log_step_count_steps=0"], "--log_step_count_steps must be at least 1"),
        (["--train_steps=many"], "train_steps"),
        (["--trian_steps=5"], "trian_steps"),
        (["surplus"], "expected only flags"),
        (["--momentum=2", "--seed=-1"], "--seed must be in"),
    ],
)
def test_a_bad_setting_is_refused(records, tmp_path, flags, words):
    job = run(
        "resnet/resnet_main.py",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
        "--recipe=digits",
        *flags,
        cwd=tmp_path,
    )
    assert words in refusal(job)
    assert not (tmp_path / "model").exists()


def test_a_set_without_a_validation_split_cannot_be_evaluated_on_the_way(
    records_of_training, tmp_path
):
    flags = (f"--data_dir={records_of_training}", f"--model_dir={tmp_path / 'model'}")
    for more in ((), ("--explain",)):
        job = run(
            "resnet/resnet_main.py",
            *flags,
            "--recipe=digits",
            "--train_batch_size=4",
            "--eval_every=1epoch",
            *more,
            cwd=tmp_path,
        )
        assert "needs a validation split, and this data set has none" in refusal(job)
    job = run(
        "resnet/resnet_main.py",
        *flags,
        "--recipe=digits",
        "--train_batch_size=4",
        "--explain",
        cwd=tmp_path,
    )
    assert "evaluation   none\n" in job.stdout


@pytest.mark.parametrize("program", ["resnet/resnet_main.py", "eval/resnet_eval.py"])
def test_missing_folders_are_asked_for(program, tmp_path):
    assert "--data_dir is required" in refusal(run(program, cwd=tmp_path))
    job = run(program, "--data_dir=here", cwd=tmp_path)
    assert "--model_dir is required" in refusal(job)


def test_a_data_dir_without_records_is_refused(tmp_path):
    flags = (f"--model_dir={tmp_path / 'model'}",)
    job = run("resnet/resnet_main.py", "--data_dir=nowhere", *flags, cwd=tmp_path)
    assert "nowhere" in refusal(job)
    job = run("resnet/resnet_main.py", f"--data_dir={tmp_path}", *flags, cwd=tmp_path)
    assert "imagenet_to_tfrecords.py" in refusal(job)


def test_a_set_that_is_not_as_its_manifest_says_is_refused(records, tmp_path):
    copy = tmp_path / "records"
    subprocess.run(["cp", "-r", records, copy], check=True)
    shard = next((copy / "train").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    job = run(
        "resnet/resnet_main.py",
        f"--data_dir={copy}",
        f"--model_dir={tmp_path / 'model'}",
        "--recipe=digits",
        "--train_batch_size=4",
        cwd=tmp_path,
    )
    assert shard.name in refusal(job)


def test_by_file_a_shard_on_no_node_is_refused(records, tmp_path):
    copy = tmp_path / "records"
    subprocess.run(["cp", "-r", records, copy], check=True)
    shard = min((copy / "train").iterdir())
    shard.unlink()
    job = run(
        "resnet/resnet_main.py",
        f"--data_dir={copy}",
        f"--model_dir={tmp_path / 'model'}",
        "--recipe=digits",
        "--train_batch_size=4",
        "--shard_by=file",
        cwd=tmp_path,
    )
    assert f"each shard on one node; train/{shard.name} is on no node" in refusal(job)


def write_unmixed(folder: Path, write_tiny_set) -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "JPEG")
    labels = [0] * 20 + [1] * 20
    for split in ("train", "validation"):
        write_tiny_set(
            folder, [file.getvalue()] * 40, labels, "ab", [20, 20], split=split
        )


def test_classes_that_are_not_mixed_over_the_files_are_refused(
    tmp_path, write_tiny_set
):
    folder = tmp_path / "records"
    folder.mkdir()
    write_unmixed(folder, write_tiny_set)
    flags = (
        f"--data_dir={folder}",
        f"--model_dir={tmp_path / 'model'}",
        "--recipe=digits",
        "--train_batch_size=4",
    )
    job = run("resnet/resnet_main.py", *flags, cwd=tmp_path)
    assert "are not shuffled across its 2 shards" in refusal(job)
    # Where they needn't be, the next check is reached: whether the files are there.
    (folder / "train" / "train-00001-of-00002").unlink()
    job = run("resnet/resnet_main.py", *flags, "--require_mixed=False", cwd=tmp_path)
    assert "train-00001-of-00002 can't be read" in refusal(job)


def test_a_folder_that_another_job_holds_is_refused_and_the_supervisor_told(
    records, tmp_path
):
    lock = RunLock(tmp_path)
    flags = ["--recipe=digits", "--train_batch_size=8", f"--model_dir={tmp_path}"]
    job = run("resnet/resnet_main.py", *flags, f"--data_dir={records}", cwd=tmp_path)
    lock.release()
    sentence = refusal(job)
    assert "is locked by another job" in sentence
    found = failure_file.read(tmp_path)
    assert found["locked"] is True
    assert found["reason"] in sentence


def test_evaluation_refuses_a_folder_that_is_no_run(records, tmp_path):
    job = run(
        "eval/resnet_eval.py",
        f"--data_dir={records}",
        f"--model_dir={tmp_path}",
        cwd=tmp_path,
    )
    assert "config.json" in refusal(job)


def test_evaluation_refuses_a_damaged_config(records, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": "resnet18"}))
    job = run(
        "eval/resnet_eval.py",
        f"--data_dir={records}",
        f"--model_dir={tmp_path}",
        cwd=tmp_path,
    )
    assert "config.json must hold the settings of a training run" in refusal(job)


@pytest.mark.parametrize(
    "program",
    [
        "resnet/resnet_main.py",
        "eval/resnet_eval.py",
        "eval/learning_curve.py",
        "data_prep/imagenet_to_tfrecords.py",
    ],
)
@pytest.mark.parametrize("way", ["path", "module"])
def test_help_lists_the_flags_from_any_folder(program, way, tmp_path):
    if way == "path":
        job = run(program, "--help", cwd=tmp_path)
    else:
        module = program.removesuffix(".py").replace("/", ".")
        job = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert job.returncode == 0, job.stderr
    assert "--" in job.stdout
    assert "_dir" in job.stdout


@pytest.mark.parametrize(
    "script",
    [
        "resnet-train",
        "resnet-eval",
        "resnet-learning-curve",
        "resnet-digits",
        "imagenet-to-tfrecords",
    ],
)
def test_console_scripts_are_installed(script, tmp_path):
    job = subprocess.run(
        [Path(sys.executable).with_name(script), "--no_such_flag"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "no_such_flag" in refusal(job)
