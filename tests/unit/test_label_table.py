"""Tables with the paths and the classes of images."""

import os

import pytest

from data_prep.sources import raw_data
from resnet.base.errors import UserError


@pytest.fixture
def raw(tmp_path):
    for path in ("raw/cats/1.jpg", "raw/2.jpg", "raw/a, b.jpg", "raw/dögs/1.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path / "raw"


def read(raw, text: str, split: str | None = None, folder: bool = True):
    table = raw.parent / "labels.csv"
    table.write_bytes(text.encode() if isinstance(text, str) else text)
    return raw_data.open_raw_data(raw if folder else None, split, str(table))


def read_json(raw, text: str, **options):
    table = raw.parent / "labels.jsonl"
    table.write_text(text)
    return raw_data.open_raw_data(raw, None, str(table), **options)


def listed(images):
    return [(image.class_name, image.filename) for image in images]


@pytest.mark.parametrize(
    "text",
    [
        "path,label\ncats/1.jpg,cat\n2.jpg,dog\n",
        "\ufeffLabel;Width;File_Name\r\ncat;1;cats/1.jpg\r\n\r\ndog;;./2.jpg",
        "image\tclass\n cats/1.jpg \tcat\n2.jpg\t dog\n2.jpg\tdog\n",
        'filename, category\n"cats/1.jpg", "cat"\n"2.jpg",dog',
    ],
)
def test_tables_of_many_forms_say_the_same(raw, text):
    source = read(raw, text)
    assert list(source.splits) == ["train"]
    assert listed(source.splits["train"]) == [("cat", "cats/1.jpg"), ("dog", "2.jpg")]
    assert [i.path for i in source.splits["train"]] == [
        f"{raw}/cats/1.jpg",
        f"{raw}/2.jpg",
    ]
    assert source.class_names == ("cat", "dog")
    table = str(raw.parent / "labels.csv")
    assert source.description == {"raw_data_dir": str(raw), "labels": table}
    assert source.warnings == ()


def test_quotes_absolute_paths_and_composed_names(raw):
    path = raw / "cats" / "1.jpg"
    text = f'path,label\n"a, b.jpg","cafe\u0301 ""x"""\n{path},b\ndögs/1.jpg,b\n'
    source = read(raw, text)
    assert source.class_names == ("b", 'caf\u00e9 "x"')
    assert {image.path for image in source.splits["train"]} == {
        str(path),
        str(raw / "a, b.jpg"),
        str(raw / "dögs" / "1.jpg"),
    }


def test_paths_are_relative_to_the_table_without_another_folder(raw):
    source = read(raw, "path,label\nraw/2.jpg,a\n", folder=False)
    (image,) = source.splits["train"]
    assert image.path == str(raw / "2.jpg")
    assert source.description["raw_data_dir"] == str(raw.parent)


def test_a_column_names_the_split_of_which_one_is_chosen(raw):
    text = "path,label,split\n2.jpg,b,Train\ncats/1.jpg,a,train\ndögs/1.jpg,b,{}\n"
    source = read(raw, text.format("VAL"))
    assert listed(source.splits["train"]) == [("a", "cats/1.jpg"), ("b", "2.jpg")]
    assert listed(source.splits["validation"]) == [("b", "dögs/1.jpg")]
    assert source.splits["validation"].class_indices.tolist() == [1]
    two = text.format("val") + "a, b.jpg,a,test\n".replace("a, b", '"a, b').replace(
        "g,", 'g",', 1
    )
    with pytest.raises(UserError, match=r"there are val and test.*split=val"):
        read(raw, two)
    source = read(raw, two, "Test")
    assert listed(source.splits["validation"]) == [("a", "a, b.jpg")]
    assert source.warnings == ("rows of other splits, left out: 1",)
    source = read(raw, text.format("Holdout"), "holdout")
    assert listed(source.splits["validation"]) == [("b", "dögs/1.jpg")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 of .* must name one column path or .*; it names none"),
        ("path,kind\n", "line 1 .* column label or class .*; it names path, kind"),
        (
            "a/1.jpg,cat\na/2.jpg,dog\n",
            "it names a/1.jpg, cat. If it is the first image, add a line path,label",
        ),
        ("path,label,class\n", "one column label or .*; it names path, label, class"),
        ("path,label\n", "must have rows after its header; it has none"),
        (
            "path,label\n2.jpg,a\n3.jpg,b\n\n4.jpg,b\n",
            "2 of 3 are missing, first '3.jpg' in line 3",
        ),
        (
            "path,label\n2.jpg,a\n\n2.jpg,b\n",
            "line 4 names '2.jpg' as 'b' .*, line 2 as",
        ),
        (
            "path,label,split\n2.jpg,a,train\n2.jpg,a,val\n",
            r"line 3 .*'a' \(val\), line 2",
        ),
        ("path,label\n2.jpg, \n", "line 2 .* must have a value as 'label'.*Fill"),
        ("path,label\n,a\n", "line 2 .* must have a value as 'path'"),
        ("path,label\na, b.jpg,a\n", "line 2 .* must have 2 columns.* has 3. Quote"),
        (
            "path,label,split\n2.jpg,a,other\n",
            "line 2 .* a split, .*; it names 'other'.* --validation_split=other",
        ),
        (
            "path,label,split\n2.jpg,a,train\ncats/1.jpg,b,val\n",
            "must have images for training; 1 have none: 'b'",
        ),
        ('path,label\n"2.jpg,a\n', "line 2 of .*: unexpected end of data"),
        (b"path,label\n2.jpg,caf\xe9\n", "must name a table in UTF-8"),
        (b"PK\3\4\xff", r"labels.csv is a spreadsheet\. Export it as CSV"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(raw, text, message):
    with pytest.raises(UserError, match=message):
        read(raw, text)


def test_lines_of_json_have_the_names_of_columns_as_keys(raw):
    text = """
    {"file": "cats/1.jpg", "label": 10, "width": 1.5, "split": "train"}

    {"split": "val", "label": "10", "FILE": "2.jpg"}
    """.replace('"FILE"', '"file"')
    source = read_json(raw, text)
    assert listed(source.splits["train"]) == [("10", "cats/1.jpg")]
    assert listed(source.splits["validation"]) == [("10", "2.jpg")]


ROW = '{"path": "2.jpg", "label": "a"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROW + "\n{", "line 2 of .* isn't JSON"),
        (ROW + "\n[1]", "line 2 of .* must be an object"),
        (ROW + '\n{"path": "1.jpg"}', "line 2 of .* must have a value as 'label'"),
        (ROW + '\n{"path": "1.jpg", "label": 1.5}', "line 2 .* as 'label', text or"),
        ('{"path": "2.jpg", "label": "a", "class": 1}', "it names path, label, class"),
        ("", "it names none"),
    ],
)
def test_a_line_of_json_that_is_wrong_is_named(raw, text, message):
    with pytest.raises(UserError, match=message):
        read_json(raw, text)


def test_a_column_tells_the_groups_of_the_training_images(raw):
    text = "path,label,Patient,split\n2.jpg,b,p,train\ncats/1.jpg,a,q,train\n"
    text += "dögs/1.jpg,b,r,val\n"
    table = raw.parent / "labels.csv"
    table.write_text(text)
    source = raw_data.open_raw_data(raw, None, str(table), "patient")
    assert listed(source.splits["train"]) == [("a", "cats/1.jpg"), ("b", "2.jpg")]
    assert source.groups == ("q", "p")
    assert source.description["group_column"] == "patient"
    assert read(raw, text).groups == ()
    with pytest.raises(UserError, match="group_column=part must name one column"):
        raw_data.open_raw_data(raw, None, str(table), "part")
    table.write_text(text + "2.jpg,b,q,train\n")
    with pytest.raises(UserError, match=r"line 5 .*\(train, q\), line 2 .*train, p"):
        raw_data.open_raw_data(raw, None, str(table), "patient")
    json_row = '{"path": "2.jpg", "label": "a", "patient": ""}'
    with pytest.raises(UserError, match=r"line 1 .* must have a value as 'patient'"):
        read_json(raw, json_row, group_column="patient")


def test_a_table_that_is_missing_or_a_pipe_is_refused(raw):
    with pytest.raises(UserError, match=r"reading .*absent.csv failed"):
        raw_data.open_raw_data(raw, None, str(raw / "absent.csv"))
    os.mkfifo(raw / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        raw_data.open_raw_data(raw, None, str(raw / "pipe"))
    with pytest.raises(
        UserError, match=r"split=test must name a split of .* are train"
    ):
        read(raw, "path,label\n2.jpg,a\n", "test")
