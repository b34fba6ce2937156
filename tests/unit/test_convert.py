import errno
import fcntl
import os
import pathlib
import shutil

import pytest

from data_prep.conversion import convert, output_folder, shards
from data_prep.conversion.plan import Options, Plan
from data_prep.conversion.plan import make_plan as make_plan_of
from data_prep.records import manifest
from data_prep.sources import raw_data
from resnet.base import errors
from tests.converter_program import content, convert_here, encoded_image, write
from tests.in_process import assert_refused

pytestmark = pytest.mark.usefixtures("one_process_is_this")


@pytest.fixture
def raw(tmp_path) -> pathlib.Path:
    """A raw folder: 7 train images and 3 validation images of 2 classes."""
    root = tmp_path / "raw"
    for index in range(7):
        path = root / "train" / f"n{index % 2}" / f"{index}.JPEG"
        write(path, encoded_image(index))
    for index in range(3):
        path = root / "val" / f"n{index % 2}" / f"{index}.JPEG"
        write(path, encoded_image(10 + index))
    return root


def make_plan(raw, root, **options) -> Plan:
    options.setdefault("train_shards", 3)
    return make_plan_of(root, raw_data.open_raw_data(raw), Options(**options))


def convert_all(plan: Plan) -> manifest.Manifest:
    with output_folder.locked(plan.root):
        output_folder.begin(plan)
        finished = convert.find_finished(plan, 1, lambda _: None)
        convert.write_shards(plan, finished, 1, lambda _: None)
        return convert.finish(plan, 1)


def test_a_plan_puts_each_image_into_one_shard(raw, tmp_path):
    plan = make_plan(raw, tmp_path / "set")
    assert plan.num_images == 10
    assert plan.paths == [
        "train/train-00000-of-00003",
        "train/train-00001-of-00003",
        "train/train-00002-of-00003",
        "validation/validation-00000-of-00001",
    ]
    jobs = list(plan.shard_jobs())
    assert [job.path for job in jobs] == plan.paths
    assert [len(job.images) for job in jobs] == [3, 2, 2, 3]
    names = [image.name for job in jobs for image in job.images]
    assert sorted(names) == sorted(str(path) for path in raw.rglob("*.JPEG"))
    assert names != sorted(names)
    for job in jobs:
        classes = [job.class_names[index] for (index,) in job.class_indices]
        assert classes == [image.class_name for image in job.images]
    assert not (tmp_path / "set").exists()

    some = plan.shard_jobs(left_out={plan.paths[0], plan.paths[3]})
    assert list(some) == jobs[1:3]


def test_a_part_of_the_training_images_are_those_that_come_first(raw, tmp_path):
    def names_of(plan: Plan) -> list[str]:
        jobs = plan.shard_jobs()
        return [image.name for job in jobs for image in job.images]

    whole = names_of(make_plan(raw, tmp_path / "set", shuffle_seed=2))
    part = make_plan(raw, tmp_path / "set", shuffle_seed=2, train_images=4)
    assert names_of(part) == whole[:4] + whole[7:]
    made = convert_all(part)
    assert made.splits["train"].num_examples == 4
    assert made.splits["validation"].num_examples == 3
    with pytest.raises(errors.UserError, match="--train_images must be at most 7"):
        make_plan(raw, tmp_path, train_images=8)


def test_the_manifest_counts_what_was_written(raw, tmp_path):
    write(raw / "train" / "n1" / "5.JPEG", encoded_image(5, "PNG"))
    (raw / "train" / "n0" / "4.JPEG").write_bytes(b"bad")
    plan = make_plan(raw, tmp_path / "set", shuffle_seed=3, on_bad_image="skip")
    made = convert_all(plan)

    train, validation = made.splits["train"], made.splits["validation"]
    assert train.label_counts == (3, 3)
    assert validation.label_counts == (2, 1)
    assert train.num_examples == 6
    (skipped,) = train.skipped_images
    assert skipped.name == str(raw / "train" / "n0" / "4.JPEG")
    assert validation.skipped_images == ()
    assert made.source["raw_data_dir"] == str(raw)
    assert made.source["shuffle_seed"] == 3
    assert made.source["on_bad_image"] == "skip"
    assert made.source["converted_images"] == {"PNG": 1}
    record_set = manifest.load(str(tmp_path / "set"), "train")
    assert record_set.manifest == made
    manifest.check_files(record_set, "train")
    assert validation.shards[0].class_mixing == 0
    assert not (tmp_path / "set" / manifest.CONVERSION_FOLDER).exists()


@pytest.fixture
def begun(raw, tmp_path) -> Plan:
    """A plan whose conversion was begun."""
    plan = make_plan(raw, tmp_path / "set")
    plan.root.mkdir()
    output_folder.begin(plan)
    return plan


def test_an_unfinished_set_of_other_settings_is_refused_with_what_differs(
    raw, begun, tmp_path
):
    root = begun.root
    before = content(root)
    output_folder.begin(make_plan(raw, root))
    # An image that ended a run may be left out by the next.
    output_folder.begin(make_plan(raw, root, on_bad_image="skip"))

    copy = shutil.copytree(raw, tmp_path / "copy")
    for source, options, message in (
        (raw, {"shuffle_seed": 5}, "shuffle_seed is 5, was 0"),
        (raw, {"train_images": 6}, "are 6 train images, 1 fewer: files"),
        (copy, {}, "raw_data_dir is '.*copy', was"),
        # Only the cause, without the digests of images that follow from it.
        (
            raw,
            {"validation_fraction": 0.5},
            r"options: validation_fraction is 0.5, was 0.0\. ",
        ),
    ):
        with pytest.raises(errors.UserError, match=message):
            output_folder.begin(make_plan(source, root, **options))
    image = raw / "train" / "n0" / "0.JPEG"
    image.rename(image.with_name("00.JPEG"))
    with pytest.raises(errors.UserError, match="train images have other names"):
        output_folder.begin(make_plan(raw, root))
    assert content(root) == before


def test_a_damaged_plan_is_named_and_without_one_nothing_is_touched(begun):
    plan_file = begun.root / ".conversion" / "plan.json"
    plan_file.write_text("[]")
    with pytest.raises(errors.UserError, match=r"Delete .*/\.conversion to"):
        output_folder.begin(begun)
    plan_file.unlink()
    report = shards.report_path(begun.root, begun.paths[0])
    report.write_text("of which plan, nobody knows")
    before = content(begun.root)
    with pytest.raises(errors.UserError, match="which is not of it"):
        output_folder.begin(begun)
    assert content(begun.root) == before


def test_a_run_that_was_killed_before_it_had_a_plan_is_begun_again(raw, tmp_path):
    plan = make_plan(raw, tmp_path / "set")
    (plan.root / "train").mkdir(parents=True)
    (plan.root / ".conversion").mkdir()
    (plan.root / ".conversion" / ".plan.json.01234567.partial").touch()
    convert_all(plan)
    convert_all(make_plan(raw, tmp_path / "other"))
    assert content(plan.root) == content(tmp_path / "other")


def test_strangers_are_refused_and_leftovers_removed(begun):
    split = begun.root / "train"
    partial = split / ".train-00000-of-00003.01234567.partial"
    partial.touch()
    output_folder.begin(begun)
    assert not partial.exists()
    (split / "train-00000-of-00007").touch()
    with pytest.raises(errors.UserError, match="'train-00000-of-00007'"):
        output_folder.begin(begun)
    assert os.listdir(split) == ["train-00000-of-00007"]


@pytest.mark.parametrize(
    "stranger",
    [
        "train/train-00000-of-00003",
        "validation-index.npy",
        "validation-00000-of-00004",
        ".conversion/notes",
        "dataset_info.json",
    ],
)
def test_what_was_there_before_the_first_start_is_never_ours(raw, tmp_path, stranger):
    plan = make_plan(raw, tmp_path / "set")
    path = plan.root / stranger
    path.parent.mkdir(parents=True)
    path.write_bytes(b"of another program")
    with pytest.raises(errors.UserError, match=f"it contains '{path.name}'"):
        convert_all(plan)
    assert content(plan.root) == {stranger: b"of another program"}


def test_images_that_change_while_they_are_converted_are_converted_again(begun):
    convert.write_shards(begun, (), 1, lambda _: None)
    image = next(begun.shard_jobs()).images[0]
    pathlib.Path(image.path).write_bytes(encoded_image(20))
    words = "those of 1 of the 4 shards have, such as train/train-00000-of"
    with pytest.raises(errors.UserError, match=words):
        convert.finish(begun, 1)
    assert not (begun.root / manifest.FILE_NAME).exists()
    convert_all(begun)
    converted = content(begun.root)
    shutil.rmtree(begun.root)
    convert_all(begun)
    assert content(begun.root) == converted


def test_a_set_that_does_not_fit_is_refused_but_finished_shards_need_no_more_room(
    raw, begun, tmp_path, monkeypatch
):
    output_folder.check_space(begun)
    sizes = [path.stat().st_size for path in raw.rglob("*.JPEG")]
    room = shutil.disk_usage("/")._replace(free=sum(sizes) // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    words = r"need about [\d.]+ kB in .* has only [\d.]+ kB free .* too little\); free"
    with pytest.raises(errors.UserError, match=words):
        output_folder.check_space(begun)
    assert_refused(convert_here(raw, tmp_path / "deep" / "set"), "too little); free")
    assert not (tmp_path / "deep").exists()
    convert.write_shards(begun, (), 1, lambda _: None)
    output_folder.check_space(begun)


def assert_is_locked_once(folder: pathlib.Path) -> None:
    with (
        output_folder.locked(folder),
        pytest.raises(errors.UserError, match="another conversion is writing to"),
        output_folder.locked(folder),
    ):
        pass


def test_a_folder_belongs_to_one_conversion_at_a_time(tmp_path):
    assert_is_locked_once(tmp_path / "set")
    with output_folder.locked(tmp_path / "set"):
        pass
    assert list((tmp_path / "set").iterdir()) == []


def test_a_folder_on_nfs_belongs_to_one_conversion_at_a_time(tmp_path, monkeypatch):
    lock = fcntl.flock

    def lock_as_nfs_does(descriptor, operation):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_as_nfs_does)
    assert_is_locked_once(tmp_path)


def test_a_lock_on_a_file_that_was_just_removed_is_taken_again(tmp_path, monkeypatch):
    lock = fcntl.flock

    def lock_late(descriptor, operation):
        """Between opening and locking, the holder ends."""
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / ".conversion.lock").unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    assert_is_locked_once(tmp_path)
