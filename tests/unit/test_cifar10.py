import os
import pathlib
import pickle

import numpy as np
import pytest
import tensorflow as tf

from data_prep.records import manifest
from data_prep.sources import cifar10, raw_data
from resnet.base.errors import UserError
from tests.converter_program import convert_here
from tests.record_reader import read_examples
from tests.unit import cifar10_files

pytestmark = pytest.mark.usefixtures("one_process_is_this")
FORMS = {  # By name: the folder for --raw_data_dir, and whether it is packed.
    "binary archive": ("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    "Python archive": ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "binary folder": ("cifar-10-batches-bin", None),
    "Python folder": ("cifar-10-batches-py", None),
}


def files_of(form: str) -> dict[str, bytes]:
    if form.startswith("binary"):
        return cifar10_files.binary_files()
    return cifar10_files.python_files()


def write(root: pathlib.Path, form: str, files=None) -> pathlib.Path:
    """Writes CIFAR-10 in a form and returns the path that `find` must find."""
    folder, archive = FORMS[form]
    files = files or files_of(form)
    if archive is None:
        cifar10_files.write_folder(root / folder, files)
        return root / folder
    cifar10_files.write_archive(root / archive, folder, files)
    return root / archive


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_images_in_published_order(tmp_path, form):
    path = write(tmp_path, form)
    assert cifar10.find(tmp_path) == path
    raw = raw_data.open_raw_data(tmp_path)
    assert raw.class_names == cifar10_files.CLASSES
    assert raw.class_descriptions == ()
    assert raw.description == {"raw_data_dir": str(tmp_path), "cifar10": path.name}
    assert raw.warnings == (
        "train holds 20 of 50,000 images of CIFAR-10",
        "validation holds 4 of 10,000 images of CIFAR-10",
    )
    for split, batches in cifar10.BATCHES.items():
        images = raw.splits[split]
        numbers = range(cifar10_files.NUM_IMAGES)
        expected = [(batch, index) for batch in batches for index in numbers]
        for image, (batch, index) in zip(images, expected, strict=True):
            label = cifar10_files.labels(batch)[index]
            assert image.filename == f"{batch}_{index:05d}.png"
            assert image.class_name == cifar10_files.CLASSES[label]
            pixels = cifar10_files.images(batch)[index]
            np.testing.assert_array_equal(tf.io.decode_png(image.read()), pixels)
            assert os.path.exists(image.path)


def test_of_several_forms_the_unpacked_one_is_read(tmp_path):
    write(tmp_path, "Python archive")
    write(tmp_path, "binary archive")
    assert cifar10.find(tmp_path) == tmp_path / "cifar-10-binary.tar.gz"
    folder = write(tmp_path, "Python folder")
    assert cifar10.find(tmp_path) == folder
    assert cifar10.find(folder) == folder  # The folder itself may be named too.
    assert len(raw_data.open_raw_data(folder).splits["train"]) == 20


def test_cifar10_becomes_the_same_records_from_both_versions_without_loss(tmp_path):
    contents = []
    for form in ("binary archive", "Python folder"):
        raw, records = tmp_path / form, tmp_path / f"{form} records"
        write(raw, form)
        done = convert_here(raw, records, "--num_processes=1", "--train_shards=2")
        assert done.returncode == 0, done.stderr
        assert "re-encoded" not in done.stdout
        assert "warning: train holds 20 of 50,000 images" in done.stderr
        files = sorted(records.rglob("*-of-*"))
        contents.append([path.read_bytes() for path in files])
    assert contents[0] == contents[1]
    loaded = manifest.load(str(records), "train").manifest
    assert loaded.class_names == cifar10_files.CLASSES
    assert loaded.image_format == "png"
    for example in read_examples(records, "train"):
        batch, index = example["file"].removesuffix(".png").rsplit("_", 1)
        assert example["label"] == 1 + cifar10_files.labels(batch)[int(index)]
        pixels = tf.io.decode_png(example["encoded"])
        np.testing.assert_array_equal(pixels, cifar10_files.images(batch)[int(index)])


def test_the_fingerprint_depends_on_the_pixels(tmp_path):
    files = cifar10_files.binary_files()
    write(tmp_path / "a", "binary folder", files)
    last = files["test_batch.bin"]
    files["test_batch.bin"] = last[:-1] + bytes([last[-1] ^ 1])
    write(tmp_path / "b", "binary folder", files)
    a, b = (raw_data.open_raw_data(tmp_path / name).splits for name in "ab")
    assert a["train"].fingerprint() == b["train"].fingerprint()
    assert a["validation"].fingerprint() != b["validation"].fingerprint()


def refused(tmp_path: pathlib.Path, form: str, files: dict[str, bytes]) -> str:
    write(tmp_path, form, files)
    with pytest.raises(UserError) as caught:
        raw_data.open_raw_data(tmp_path)
    return str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    for form, name in (
        ("binary archive", "data_batch_3.bin"),
        ("Python folder", "data_batch_3"),
    ):
        files = files_of(form)
        del files[name]
        message = refused(tmp_path / name, form, files)
        assert f"it lacks {name}. Download or unpack it again." in message


def test_a_truncated_binary_file_and_a_label_without_a_class_are_refused(tmp_path):
    files = cifar10_files.binary_files()
    cut = files | {"data_batch_2.bin": files["data_batch_2.bin"][:-1]}
    message = refused(tmp_path / "cut", "binary folder", cut)
    assert "data_batch_2.bin of " in message
    assert "it has 12,291 bytes; expected a multiple of 3,073" in message
    wrong = files | {"test_batch.bin": b"\x0a" + files["test_batch.bin"][1:]}
    message = refused(tmp_path / "wrong", "binary folder", wrong)
    assert "its labels must be from 0 to 9; one is 10" in message
    empty = files | {"test_batch.bin": b""}
    assert "it has 0 bytes" in refused(tmp_path / "empty", "binary folder", empty)
    twice = files | {"batches.meta.txt": b"cat\ncat\n"}
    assert "the names of its classes are" in refused(
        tmp_path / "twice", "binary folder", twice
    )


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("made by the pickle",)


@pytest.mark.parametrize(
    ("name", "protocol"), [("batches.meta", 0), ("data_batch_1", 2), ("test_batch", 4)]
)
def test_a_pickle_cannot_run_code(tmp_path, monkeypatch, name, protocol):
    monkeypatch.chdir(tmp_path)
    files = cifar10_files.python_files()
    files[name] = pickle.dumps({"labels": RunsCode()}, protocol)
    message = refused(tmp_path / "raw", "Python folder", files)
    assert f"the file {name} of " in message
    assert "mkdir, which could run code" in message
    assert not (tmp_path / "made by the pickle").exists()


def test_a_pickle_of_something_else_is_refused(tmp_path):
    good = cifar10_files.python_files()
    pixels = cifar10_files.planes("test_batch")
    pickled = cifar10_files.pickle_of_python_2
    for index, content in enumerate(
        (
            b"",
            good["test_batch"][:-100],
            pickled([]),
            pickled({b"labels": [1]}),
            pickled({b"labels": [1], b"data": pixels}),
            pickled({b"labels": [], b"data": pixels[:0]}),
            pickled({b"labels": [1] * 4, b"data": pixels.astype(np.uint16)}),
            pickled({b"labels": [300] * 4, b"data": pixels}),
            pickled({b"labels": [1] * 4, b"data": 1}),
        )
    ):
        files = good | {"test_batch": content}
        message = refused(tmp_path / str(index), "Python folder", files)
        assert "the file test_batch of " in message
        assert "is not as published: " in message


@pytest.mark.parametrize("damage", ["cut", "text", "flipped"])
def test_a_damaged_archive_is_refused(tmp_path, damage):
    path = write(tmp_path, "binary archive")
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut": content[:middle],
            "text": b"text",
            "flipped": content[:middle] + bytes(64) + content[middle + 64 :],
        }[damage]
    )
    with pytest.raises(
        UserError, match=r"is not a readable tar\.gz archive: .*Downloa"
    ):
        raw_data.open_raw_data(tmp_path)
