"""Several labels an image: tables, records, images in place, and their batches."""

import dataclasses
import pathlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.conversion import holdout
from data_prep.conversion.plan import Options
from data_prep.records import labels, manifest, record_index, tf_example, verification
from data_prep.records.class_mixing import ShardContent, write_split
from data_prep.records.tf_example import RecordForm
from data_prep.sources import raw_data
from resnet.base.errors import UserError
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.data import record_files, record_sets
from tests.converter_program import convert_here, encoded_image, write
from tests.unit.read_batches import assert_equal, evaluate, join, open_train, train

NAMES = ("ant", "bee", "cat", "dog", "eel")
LISTS = st.lists(st.sets(st.integers(0, len(NAMES) - 1)).map(sorted), min_size=1)
NUM_IMAGES = 12


def names_of(rows: np.ndarray, names=NAMES) -> list[set[str]]:
    return [{names[k] for k in np.flatnonzero(row)} for row in rows]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("csv", "path,label\n1.png,dog|cat\n2.png,\n3.png, cat ; cat\n"),
        ("csv", 'path;label\n1.png;"cat;dog"\n2.png;""\n3.png;cat\n'),
        ("tsv", "path\tlabel\n1.png\tcat|dog\n2.png\t\n3.png\tcat|\n"),
        (
            "jsonl",
            '{"path": "1.png", "label": ["dog", "cat"]}\n'
            '{"path": "2.png", "label": []}\n{"path": "3.png", "label": "cat"}\n',
        ),
    ],
)
def test_tables_of_many_forms_name_the_same_labels(tmp_path, suffix, text):
    for number in (1, 2, 3):
        (tmp_path / f"{number}.png").touch()
    table = tmp_path / f"labels.{suffix}"
    table.write_text(text)
    source = raw_data.open_raw_data(None, labels=str(table), multi_label=True)
    assert source.class_names == ("cat", "dog")
    assert source.multi_label
    images = source.splits["train"]
    found = dict(zip([i.filename for i in images], images.labels.tolist(), strict=True))
    assert found == {"1.png": [1, 1], "2.png": [0, 0], "3.png": [1, 0]}


@pytest.mark.parametrize(
    ("row", "multi_label", "message"),
    [
        ('"label": ["a"]', False, "line 1 .* a list of these with --multi_label"),
        ('"label": [1.5]', True, "line 1 .* must have a value as 'label'"),
        ('"label": null', True, "line 1 .* must have a value as 'label'"),
        ('"label": "a", "split": ["train"]', True, "line 1 .* a value as 'split'"),
        ('"label": []', True, "must name labels; all images have none"),
        ('"label": "a"}\n{"path": "2", "label": "b", "split": "val"', True, "'b' in"),
    ],
)
def test_a_row_of_another_form_is_named(tmp_path, row, multi_label, message):
    for name in "12":
        (tmp_path / name).touch()
    table = tmp_path / "labels.jsonl"
    table.write_text('{"path": "1", "split": "train", ' + row + "}")
    with pytest.raises(UserError, match=message):
        raw_data.open_raw_data(None, labels=str(table), multi_label=multi_label)


@given(LISTS)
def test_lists_of_labels_go_through_arrays_and_records(lists):
    rows = labels.multi_hot(lists, len(NAMES))
    assert labels.indices_of(rows) == [tuple(indices) for indices in lists]
    counts = [sum(k in indices for indices in lists) for k in range(len(NAMES))]
    assert labels.counts(rows, len(NAMES)).tolist() == counts
    for indices, rarest in zip(lists, labels.rarest(rows).tolist(), strict=True):
        expected = min(indices, key=lambda k: (counts[k], k), default=len(NAMES))
        assert rarest == expected
    form = RecordForm(class_names=NAMES, first_label=1, multi_label=True)
    for indices in lists:
        own = {"labels": [1 + k for k in indices], "height": 1, "width": 1}
        own |= {"class_names": [NAMES[k] for k in indices], "filename": ""}
        record = tf_example.image_example(b"\xff\xd8\xff", **own)
        features = tf_example.parse_example(record)
        assert form.labels_and_image(features) == (indices, b"\xff\xd8\xff")
        assert tf_example.class_names_of(features) == own["class_names"]


@settings(max_examples=20, deadline=None)
@given(lists=LISTS, damage=st.sampled_from(["none", "count", "value"]))
def test_an_index_holds_the_lists_that_the_manifest_counts(
    tmp_path_factory, lists, damage
):
    folder = tmp_path_factory.mktemp("set")
    rows = labels.multi_hot(lists, len(NAMES))
    if damage == "value":
        rows[0, 0] = 2
    offsets = np.arange(len(rows)).tolist()
    content = ShardContent("train/a", len(rows), "a" * 64, offsets, rows)
    split = write_split(folder, "train", [content], len(NAMES))
    if damage == "count":
        counts = (split.label_counts[0] ^ 1, *split.label_counts[1:])
        split = dataclasses.replace(split, label_counts=counts)
    form = {"class_names": NAMES, "first_label": 1, "multi_label": True}
    contents = manifest.Manifest(splits={"train": split}, source={}, **form)
    record_set = manifest.RecordSet(contents, folder, folder)
    if damage == "none":
        index = record_index.read_index(record_set, split)
        np.testing.assert_array_equal(record_index.labels_of(index), rows)
    else:
        with pytest.raises(UserError, match="it has other label_counts"):
            record_index.read_index(record_set, split)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> tuple[dict[str, pathlib.Path], dict[int, set[str]]]:
    """The same images as records and in place, and the labels by their file names."""
    root = tmp_path_factory.mktemp("several")
    generator, known, rows = np.random.default_rng(3), {}, ["path,label"]
    for number in range(NUM_IMAGES):
        data = encoded_image(number)
        write(root / "raw" / f"{number}.jpg", data)
        chosen = {NAMES[k] for k in np.flatnonzero(generator.random(len(NAMES)) < 0.4)}
        rows.append(f"{number}.jpg,{'|'.join(chosen)}")
        known[number] = chosen
    table = root / "raw" / "labels.csv"
    table.write_text("\n".join(rows))
    folders = {}
    for name, flags in (("records", ()), ("in_place", ("--in_place",))):
        folders[name] = root / name
        flags = f"--labels={table}", "--multi_label", *flags
        done = convert_here(root / "raw", root / name, *flags)
        assert done.returncode == 0, done.stderr
        assert "several labels an image: 5 (ant, bee" in done.stdout
    return folders, known


def config_of(names=NAMES, **changes):
    given = {"mode": "train", "model": "resnet8", "warmup_steps": 0, "train_steps": 5}
    given |= {"global_batch_size": 6, "eval_batch_size": 8, **changes}
    return resolve(digits.DIGITS, given, NUM_IMAGES, names, multi_label=True)


@settings(max_examples=2, deadline=None)
@given(
    num_ranks=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**40),
    cutmix=st.sampled_from([0.0, 1.0]),
)
@example(3, 5, 1.0)
def test_batches_are_equal_from_records_and_in_place_for_any_number_of_ranks(
    sets, num_ranks, seed, cutmix
):
    records, in_place = (open_train(folder) for folder in sets[0].values())
    cutmix = cutmix if num_ranks != 2 else 0.0  # It needs pairs: 6 images are 3 each.
    config = config_of(seed=seed, cutmix=cutmix)
    expected = train(records, config)
    of_ranks = [train(in_place, config, rank, num_ranks) for rank in range(num_ranks)]
    assert_equal([join(parts) for parts in zip(*of_ranks, strict=True)], expected)
    for batch in expected:
        assert batch.labels.dtype == np.uint8
        np.testing.assert_array_equal(batch.labels, records.labels[batch.examples])


def test_each_image_keeps_its_labels_whatever_the_order_of_the_run(sets):
    """Also with classes that the set hasn't."""
    folders, known = sets
    for folder in folders.values():
        record_set = manifest.load(str(folder), "train")
        assert verification.verify(record_set, 1, lambda count: None) == []
        for names in (NAMES, ("eel", "fox", *NAMES[:4])):
            records = record_files.open_split(record_set, "train", names)
            whole = join(evaluate(records, config_of(names), batch_size=6))
            found = names_of(whole.labels, names)
            for number, labels_of_image in zip(whole.examples, found, strict=True):
                name = records.read(int(number))[1]
                assert known[int(name.partition(".")[0])] == labels_of_image


def test_images_are_held_out_by_the_rarest_label_or_by_group(tmp_path):
    """All have label a, two of four b; four are of one patient."""
    rows = ["path,label,patient"]
    for number in range(24):
        write(tmp_path / f"{number}.png", bytes([number]))
        rows.append(f"{number}.png,{'a|b' if number % 4 < 2 else 'a'},{number // 4}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    table = str(tmp_path / "labels.csv")
    held: list[int] = []
    for fold in range(1, 4):
        source = raw_data.open_raw_data(None, None, table, "patient", multi_label=True)
        images = holdout.hold_out(source, Options(fold=f"{fold}/3"), 1).splits
        own = [int(image.filename[:-4]) for image in images["validation"]]
        assert images["validation"].labels.tolist() == [[1, k % 4 < 2] for k in own]
        assert len(own) == 4 * len({k // 4 for k in own})
        held += own
    assert sorted(held) == list(range(24))
    source = raw_data.open_raw_data(None, None, table, multi_label=True)
    images = holdout.hold_out(source, Options(validation_fraction=1e-9), 1).splits
    assert sorted(images["validation"].labels[:, 1].tolist()) == [0, 1]  # One of each.


def test_runs_and_sets_of_another_kind_are_refused(sets, make_config):
    record_set = manifest.load(str(sets[0]["records"]), "train")
    with pytest.raises(UserError, match="must have one class an image, as the run;"):
        record_sets.check_fits(record_set, make_config(12, NAMES), "the run")
    record_sets.check_fits(record_set, config_of(), "the run")
    split = record_set.manifest.splits["train"]
    record_sets.check_num_classes("here", split)
    split = dataclasses.replace(split, label_counts=(0, NUM_IMAGES, 0, 0, 0))
    with pytest.raises(UserError, match="at least two classes"):
        record_sets.check_num_classes("here", split)
