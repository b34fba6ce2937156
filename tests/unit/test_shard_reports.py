import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.conversion import shard_reports
from data_prep.records import manifest, schema

COUNTS = st.integers(1, 10**6)
SKIPPED = st.builds(manifest.SkippedImage, st.text(), st.text())
REPORTS = st.builds(
    shard_reports.ShardReport,
    path=st.just("train/train-00003-of-00005"),
    num_bytes=COUNTS,
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    offsets=st.lists(st.integers(0, 2**62)).map(tuple),
    class_counts=st.dictionaries(st.integers(0, 30_000), COUNTS),
    converted_counts=st.dictionaries(st.text(), COUNTS),
    skipped_images=st.lists(SKIPPED).map(tuple),
    source_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("set")
    (root / schema.CONVERSION_FOLDER).mkdir()
    return root


@given(REPORTS)
def test_a_report_comes_back_as_it_was(root, report):
    shard_reports.write(root, report)
    assert shard_reports.read(root, report.path) == report
    path = root / ".conversion" / "train-00003-of-00005.json"
    assert shard_reports.report_path(root, report.path) == path
    assert path.exists()


@given(st.data())
def test_a_damaged_report_counts_as_none(root, data):
    report = data.draw(REPORTS)
    shard_reports.write(root, report)
    path = shard_reports.report_path(root, report.path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert shard_reports.read(root, report.path) is None

    # Any one byte; a change of spaces or of the form of a number would mean the same.
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 127))
    path.write_bytes(changed)
    assert shard_reports.read(root, report.path) in (None, report)


def test_no_report_a_foreign_one_and_other_json_count_as_none(root):
    name = "train/train-00000-of-00001"
    assert shard_reports.read(root, name) is None
    other = shard_reports.ShardReport(
        "other/file", 1, "0" * 64, (0,), {0: 1}, {}, (), "0" * 64
    )
    shard_reports.write(root, other)
    path = shard_reports.report_path(root, name)
    for text in (
        shard_reports.report_path(root, other.path).read_text(),
        "[]",
        "{}",
        json.dumps({"report": 1, "sha256": ""}),
        "\0",
    ):
        path.write_text(text)
        assert shard_reports.read(root, name) is None
