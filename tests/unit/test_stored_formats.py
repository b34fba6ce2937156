"""Files that earlier versions wrote: sets still load, conversions still resume."""

import pathlib

import PIL

from data_prep.conversion import shard_reports
from data_prep.conversion.plan import Options, make_plan
from data_prep.records import manifest
from data_prep.sources.image_list import ImageList, ImageListBuilder
from data_prep.sources.raw_data import RawData

MANIFEST = """{
 "class_descriptions": ["house cat", "domestic dog"],
 "class_names": ["cat", "dog"],
 "first_label": 1,
 "format_version": 2,
 "image_format": "jpeg",
 "image_key": "image/encoded",
 "label_key": "image/class/label",
 "source": {"shuffle_seed": 0},
 "splits": {
  "train": {
   "label_counts": [1, 2],
   "offsets_path": "train-offsets.npy",
   "offsets_sha256": "cccc",
   "shards": [
    {
     "class_mixing": 0.5,
     "num_bytes": 20,
     "num_records": 2,
     "path": "train/train-00000-of-00002",
     "sha256": "aaaa"
    },
    {
     "class_mixing": 0.0,
     "num_bytes": 10,
     "num_records": 1,
     "path": "train/train-00001-of-00002",
     "sha256": null
    }
   ],
   "skipped_images": [{"name": "cat/1.jpg", "reason": "it is empty"}]
  }
 }
}
"""
SHARD_PATH = "train/train-00000-of-00002"
OLD_SHARD_REPORT = (
    '{"report": {"path": "train/train-00000-of-00002", "num_bytes": 20, "sha256": "'
    + 64 * "a"
    + '", "offsets": [0, 8], "class_counts": [[1, 2]], "converted_counts": {"PNG": 1},'
    ' "skipped_images": [{"name": "/raw/x/1.jpg", "reason": "it is empty"}]}, "sha256":'
    ' "1bdc42f517b4ee683e1fd6dd3fbcf1c98aec87343965a665ac3b2592b266702d"}'
)
SHARD_REPORT = (
    '{"report": {"path": "train/train-00000-of-00002", "num_bytes": 20, "sha256": "'
    + 64 * "a"
    + '", "offsets": [0, 8], "class_counts": [[1, 2]], "converted_counts": {"PNG": 1},'
    ' "skipped_images": [{"name": "/raw/x/1.jpg", "reason": "it is empty"}],'
    ' "source_digest": "' + 64 * "b" + '"}, "sha256":'
    ' "1dd5bbea22452b42f55ede5dcd4c8c8adf12689b10fc5ca220d05b7ef5c5070a"}'
)


def test_a_manifest_of_an_earlier_version_loads():
    train = manifest.Split(
        name="train",
        shards=(
            manifest.Shard("train/train-00000-of-00002", 2, 20, "aaaa", 0.5),
            manifest.Shard("train/train-00001-of-00002", 1, 10, None, 0.0),
        ),
        label_counts=(1, 2),
        offsets_path="train-offsets.npy",
        offsets_sha256="cccc",
        skipped_images=(manifest.SkippedImage("cat/1.jpg", "it is empty"),),
    )
    assert manifest.Manifest.from_json(MANIFEST, "m.json") == manifest.Manifest(
        class_names=("cat", "dog"),
        first_label=1,
        splits={"train": train},
        source={"shuffle_seed": 0},
        class_descriptions=("house cat", "domestic dog"),
    )


def test_a_shard_report_of_an_earlier_version_is_read_and_written_alike(tmp_path):
    path = tmp_path / ".conversion" / "train-00000-of-00002.json"
    path.parent.mkdir()
    path.write_text(SHARD_REPORT)
    report = shard_reports.read(tmp_path, SHARD_PATH)
    assert report == shard_reports.ShardReport(
        path=SHARD_PATH,
        num_bytes=20,
        sha256=64 * "a",
        offsets=(0, 8),
        class_counts={1: 2},
        converted_counts={"PNG": 1},
        skipped_images=(manifest.SkippedImage("/raw/x/1.jpg", "it is empty"),),
        source_digest=64 * "b",
    )
    path.unlink()
    shard_reports.write(tmp_path, report)
    assert path.read_text() == SHARD_REPORT


def test_a_shard_report_without_the_state_of_the_images_counts_as_none(tmp_path):
    path = tmp_path / ".conversion" / "train-00000-of-00002.json"
    path.parent.mkdir()
    path.write_text(OLD_SHARD_REPORT)
    assert shard_reports.read(tmp_path, SHARD_PATH) is None


def image_list(folder: pathlib.Path, *filenames: str) -> ImageList:
    builder = ImageListBuilder(("cat", "dog"))
    for index, filename in enumerate(filenames):
        (folder / filename).write_bytes(b"\xff\xd8\xff")
        builder.add_file(str(folder), filename, index % 2)
    return builder.build()


def test_the_metadata_of_a_plan_is_that_of_earlier_versions(tmp_path):
    raw = RawData(
        class_names=("cat", "dog"),
        class_descriptions=(),
        splits={
            "train": image_list(tmp_path, "1.jpg", "2.jpg", "3.jpg"),
            "validation": image_list(tmp_path, "4.png"),
        },
        num_ignored_files=0,
        description={"raw_data_dir": "/raw"},
    )
    plan = make_plan(pathlib.Path("/set"), raw, Options({"train": 2}, shuffle_seed=7))
    # As in the plan.json of the first version with resumption. A conversion resumes
    # only if all of it is equal.
    assert plan.metadata() == {
        "raw_data_dir": "/raw",
        "shuffle_seed": 7,
        "apply_exif_orientation": False,
        "train_images": 3,
        "train_shards": 2,
        "validation_images": 1,
        "validation_shards": 1,
        "num_classes": 2,
        "class_names_sha256": (
            "cd73b2771c519ee7c8369113fbe26f1866ac66570b70c3a8f6b897f893df0671"
        ),
        "train_fingerprint": (
            "b74dadef39be82e600110a7d3363bf77eb362261a58a6622f87cb14c82094798"
        ),
        "validation_fingerprint": (
            "bfb2a121de8be816fc6dde145d3973a990fa0294ae8dcc62ec7f0fddf4797fc7"
        ),
        "jpeg_quality": 95,
        "jpeg_subsampling": 0,
        "pillow_version": PIL.__version__,
        "format_version": 2,
    }
