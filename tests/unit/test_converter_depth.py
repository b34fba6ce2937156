"""The converter on images of 16 bits, TIFFs, and formats that it doesn't read."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from data_prep.conversion import depth_window
from data_prep.images import depth
from data_prep.records import manifest
from tests.converter_program import convert_here, encoded_image, write
from tests.in_process import assert_refused, succeeded
from tests.record_reader import read_examples
from tests.unit.encoded_images import decode, png_of, tiff_of

pytestmark = pytest.mark.usefixtures("one_process_is_this")

LOW, HIGH = 100, 4_000  # Samples are of 12 bits.


def samples_of(number: int) -> np.ndarray:
    channels = 1 + 2 * (number % 2)
    values = np.random.default_rng(number).integers(LOW, HIGH, (9, 8, channels))
    return values.astype(np.uint16)


@pytest.fixture
def raw(tmp_path) -> pathlib.Path:
    """A raw folder of 8 training and 4 validation images of 2 classes, in 16 bits."""
    for number in range(12):
        values = samples_of(number)
        png = png_of(values, 2 if values.shape[2] == 3 else 0)
        name, data = ("x.png", png) if number < 6 else ("x.tiff", tiff_of(values))
        split = "train" if number < 8 else "val"
        write(tmp_path / "raw" / split / f"c{number % 2}" / f"{number}{name}", data)
    return tmp_path / "raw"


def window_of(records: pathlib.Path, split: str = "train") -> tuple[int, ...]:
    return manifest.load(str(records), split).manifest.depth_window


def stored(records: pathlib.Path, split: str) -> dict[int, np.ndarray]:
    """Returns the stored pixels by the numbers of the images."""
    examples = read_examples(records, split)
    return {
        int(example["file"].split("x")[0]): np.asarray(decode(example["encoded"]))
        for example in examples
    }


def assert_scaled(records: pathlib.Path, window: tuple[int, ...]) -> None:
    for split in "train", "validation":
        for number, pixels in stored(records, split).items():
            expected = depth.table(window)[samples_of(number)]
            np.testing.assert_array_equal(
                pixels, np.broadcast_to(expected, pixels.shape)
            )


def test_the_window_is_that_of_the_training_images_or_stated(raw, tmp_path):
    done = succeeded(convert_here(raw, tmp_path / "set", "--num_processes=1"))
    values = np.concatenate([samples_of(number).ravel() for number in range(8)])
    percentiles = np.percentile(values, [0.1, 99.9], method="inverted_cdf")
    assert window_of(tmp_path / "set") == tuple(percentiles)
    assert "re-encoded as RGB PNG: 12 (6 16-bit PNG, 6 16-bit TIFF)" in done.stdout
    assert f"16-bit samples from {percentiles[0]:,} to" in done.stdout
    assert_scaled(tmp_path / "set", tuple(percentiles))
    done = convert_here(raw, tmp_path / "set", "--num_processes=1")
    assert "already converted" in done.stdout
    stated = "--depth_window=50,3000"
    assert_refused(
        convert_here(raw, tmp_path / "set", stated), "depth_window is [50, 3000], was"
    )
    done = succeeded(convert_here(raw, tmp_path / "other", stated, "--num_processes=1"))
    assert window_of(tmp_path / "other") == (50, 3000)
    assert_scaled(tmp_path / "other", (50, 3000))


def test_a_sample_of_the_images_is_read_in_their_order(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(depth_window, "MOST_IMAGES", 3)
    monkeypatch.setattr(depth_window, "_CHUNK", 2)
    done = convert_here(raw, tmp_path / "set", "--num_processes=1", "--train_shards=1")
    assert done.returncode == 0, done.stderr
    order = list(stored(tmp_path / "set", "train"))  # One shard.
    values = np.concatenate([samples_of(order[place]).ravel() for place in (0, 2, 5)])
    percentiles = np.percentile(values, [0.1, 99.9], method="inverted_cdf")
    assert window_of(tmp_path / "set") == tuple(percentiles)


def test_a_set_without_training_images_takes_the_window_of_another(raw, tmp_path):
    shutil.rmtree(raw / "train")
    done = convert_here(raw, tmp_path / "test")
    assert done.returncode == 2
    assert "need --depth_window=LOW,HIGH" in done.stderr
    assert not (tmp_path / "test").exists()
    done = succeeded(
        convert_here(raw, tmp_path / "test", "--depth_window=7,9", "--num_processes=1")
    )
    assert window_of(tmp_path / "test", "validation") == (7, 9)


def test_a_bad_image_stops_before_the_window_is_chosen_or_is_left_out(raw, tmp_path):
    path = raw / "train" / "c0" / "0x.png"
    path.write_bytes(path.read_bytes()[:-20])
    done = convert_here(raw, tmp_path / "set", "--num_processes=1")
    assert_refused(done, "0x.png can't be decoded")
    assert not (tmp_path / "set").exists()
    flags = "--on_bad_image=skip", "--num_processes=1"
    assert convert_here(raw, tmp_path / "set", *flags).returncode == 0
    values = np.concatenate([samples_of(number).ravel() for number in range(1, 8)])
    percentiles = np.percentile(values, [0.1, 99.9], method="inverted_cdf")
    assert window_of(tmp_path / "set") == tuple(percentiles)


def test_images_of_8_bits_have_no_window(tmp_path):
    for label in "ab":
        write(tmp_path / "raw" / label / "1.tif", encoded_image(3, "TIFF"))
    done = convert_here(tmp_path / "raw", tmp_path / "set", "--num_processes=1")
    assert done.returncode == 0, done.stderr
    assert window_of(tmp_path / "set") == ()
    assert "re-encoded as RGB PNG: 2 (2 TIFF)" in done.stdout


@pytest.mark.parametrize("window", ["5", "5,5", "9,5", "-1,5", "0,65536", "1,2,3"])
def test_windows_that_are_none_are_refused(raw, tmp_path, window):
    done = convert_here(raw, tmp_path / "set", f"--depth_window={window}")
    assert_refused(done, f"0 <= LOW < HIGH < 65536, without --in_place; got {window}")


def test_images_in_place_have_8_bits_and_no_window(raw, tmp_path):
    flags = "--in_place", "--num_processes=1"
    done = convert_here(raw, tmp_path / "set", *flags)
    assert_refused(done, "would be re-encoded (16-bit ")
    done = convert_here(raw, tmp_path / "set", *flags, "--depth_window=5,9")
    assert_refused(done, "without --in_place; got 5,9")
    for label in "ab":
        write(tmp_path / "tiffs" / label / "1.tif", encoded_image(3, "TIFF"))
    done = convert_here(tmp_path / "tiffs", tmp_path / "tiffs_set", *flags)
    assert done.returncode == 2
    assert "1.tif would be re-encoded (TIFF)" in done.stderr


@pytest.mark.parametrize("place", ["train/{}", "{}"])
@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("1.heic", b"\0\0\0\x18ftypheic", "HEIC"),
        ("1.dcm", bytes(128) + b"DICM", "DICOM"),
        ("1.nef", tiff_of(samples_of(1), t254=1), "a raw file of a camera"),
        ("1.jp2", b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    ],
)
def test_folders_of_formats_that_are_not_read_are_refused_by_name(
    tmp_path, place, name, start, kind
):
    for label in "ab":
        write(tmp_path / "raw" / place.format(label) / name, start + bytes(99))
    done = convert_here(tmp_path / "raw", tmp_path / "set")
    assert_refused(done, f"{name}, which is {kind}. Convert it to PNG")


def test_the_manifest_has_the_window(raw, tmp_path):
    succeeded(
        convert_here(raw, tmp_path / "set", "--depth_window=5,9", "--num_processes=1")
    )
    path = tmp_path / "set" / manifest.FILE_NAME
    fields = json.loads(path.read_text())
    assert fields["depth_window"] == [5, 9]
    path.write_text(json.dumps(fields | {"depth_window": [9, 5]}))
    with pytest.raises(Exception, match="depth_window must be two samples; it is"):
        manifest.read_file(path)
