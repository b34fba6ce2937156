"""Images of 16 bits: their samples, their window, and the same pixels everywhere."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.conversion import depth_window
from data_prep.images import depth, image_encoding
from data_prep.images.image_encoding import Encoding
from data_prep.records import manifest
from resnet.base.errors import UserError
from resnet.data import decoding
from tests.unit.encoded_images import (
    COMPRESS,
    decode,
    encode,
    noise,
    png_of,
    tiff_of,
    to_jpeg,
    to_png,
)

RANDOM = np.random.default_rng(0)
WINDOWS = (
    st.tuples(*[st.integers(0, 65_535)] * 2).map(sorted).filter(manifest.is_window)
)


def random_samples(channels: int, side: int = 7) -> np.ndarray:
    return RANDOM.integers(0, 65_536, (side, side + 2, channels), np.uint16)


@given(WINDOWS)
def test_a_window_is_a_rising_line_with_exact_ends(window):
    low, high = window
    table = depth.table(tuple(window)).astype(int)
    assert not table[: low + 1].any()
    assert (table[high:] == 255).all()
    assert (np.diff(table) >= 0).all()
    # Rounded half up: nobody is farther than a half from the line.
    line = 255 * (np.arange(low, high + 1) - low) / (high - low)
    assert np.abs(table[low : high + 1] - line).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("window", "values", "expected"),
    [
        ((0, 65_535), (0, 128, 129, 65_406, 65_407, 65_535), (0, 0, 1, 254, 255, 255)),
        ((0, 510), (0, 1, 2, 3, 509, 510, 9_999), (0, 1, 1, 2, 255, 255, 255)),
        ((1_000, 1_001), (0, 1_000, 1_001), (0, 0, 255)),
        ((), (255, 256, 65_535), (0, 1, 255)),  # The upper 8 bits.
    ],
)
def test_windows_by_hand(window, values, expected):
    assert tuple(depth.table(window)[list(values)]) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({7: 1, 500: 998, 900: 1}, (7, 500)),  # The 1st and the 999th of 1,000.
        ({7: 1, 500: 997, 900: 2}, (7, 900)),
        ({3: 1, 9: 1}, (3, 9)),
        ({0: 5}, (0, 1)),  # A window has two values.
        ({40: 5}, (39, 40)),
        ({65_535: 5}, (65_534, 65_535)),
    ],
)
def test_percentiles_by_hand(counts, expected):
    histogram = np.zeros(depth.NUM_VALUES, np.int64)
    histogram[list(counts)] = list(counts.values())
    assert depth_window.percentiles(histogram) == expected


@settings(max_examples=20)
@given(st.lists(st.integers(0, 65_535), min_size=1, max_size=3_000))
def test_percentiles_are_those_of_numpy(values):
    histogram = np.bincount(values, minlength=depth.NUM_VALUES)
    low, high = np.percentile(values, [0.1, 99.9], method="inverted_cdf")
    window = depth_window.percentiles(histogram)
    assert manifest.is_window(window)
    assert window == (low, high) or low == high in (*window, 0)


@pytest.mark.parametrize(("color_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_both_bytes_of_a_png_are_read_and_scaled(color_type, channels):
    values = random_samples(channels)
    data = png_of(values, color_type)
    colors = image_encoding.read_colors(data, "x")
    np.testing.assert_array_equal(colors, values[..., : 3 if channels > 2 else 1])
    assert (
        image_encoding.read_colors(png_of(values.astype(np.uint8), color_type), "x")
        is None
    )
    window = 20_000, 30_000
    num_colors = 3 if channels > 2 else 1
    colors = depth.table(window)[values[..., :num_colors]].astype(int)
    if channels in (2, 4):  # Over white.
        alpha = values[..., -1:].astype(int) >> 8
        colors = np.round((colors * alpha + 255 * (255 - alpha)) / 255)
    expected = np.broadcast_to(colors, (*colors.shape[:2], 3))
    stored = to_png(data, "x", depth_window=window)
    assert stored.converted_from == "16-bit PNG"
    np.testing.assert_array_equal(np.asarray(decode(stored.data)), expected)
    served = decoding.decode_png(tf.constant(data), window)
    np.testing.assert_array_equal(served, expected)
    in_jpeg = to_jpeg(data, "x", depth_window=window).data
    again = to_jpeg(stored.data, "x").data
    assert in_jpeg == again


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", COMPRESS)
def test_a_tiff_is_stored_without_loss(kind, channels, order, compression):
    values = random_samples(channels).astype(kind)
    data = tiff_of(values, order, compression)
    is_deep = kind == np.uint16
    read = image_encoding.read_colors(data, "x")
    np.testing.assert_array_equal(read, values) if is_deep else None
    window = 20_000, 30_000
    expected = depth.table(window)[values] if is_deep else values
    stored = to_png(data, "x", depth_window=window)
    assert stored.converted_from == ("16-bit TIFF" if is_deep else "TIFF")
    expected = np.broadcast_to(expected, (7, 9, 3))
    np.testing.assert_array_equal(np.asarray(decode(stored.data)), expected)
    assert not image_encoding.is_lossy(data[: image_encoding.START_BYTES])
    jpeg = to_jpeg(data, "x", depth_window=window).data
    assert jpeg == to_jpeg(stored.data, "x").data


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_the_orientation_of_a_tiff_is_applied_only_if_asked(orientation, kind):
    values = random_samples(3).astype(kind)
    data = tiff_of(values, t274=orientation)
    eight = values if kind == np.uint8 else values >> 8
    stored = to_png(data, "x")
    np.testing.assert_array_equal(np.asarray(decode(stored.data)), eight)
    assert stored.ignores_orientation == (orientation > 1)
    png = encode(Image.fromarray(eight.astype(np.uint8)), "PNG", exif=exif(orientation))
    turned = to_png(data, "x", apply_exif_orientation=True)
    expected = to_png(png, "x", apply_exif_orientation=True)
    np.testing.assert_array_equal(decode(turned.data), decode(expected.data))


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[274] = orientation
    return made


GRAY, COLORS = random_samples(1), random_samples(3)
FTYP = b"\0\0\0\x18ftyp"
REFUSED = [
    ("DICOM", bytes(128) + b"DICM\2\0\0\0UL\4\0"),
    ("HEIC", FTYP + b"heic\0\0\0\0mif1heic"),
    ("HEIC", FTYP + b"mif1\0\0\0\0mif1heic"),
    ("AVIF", FTYP + b"avif\0\0\0\0avifmif1"),
    ("AVIF", FTYP + b"mif1\0\0\0\0mif1avif"),
    ("JPEG 2000", encode(noise(), "JPEG2000")),
    ("JPEG 2000", encode(noise(), "JPEG2000", no_jp2=True)),
    ("JPEG XL", b"\xff\x0a\xfa\x1f\1"),
    ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
    ("a raw file of a camera", b"II*\0\x10\0\0\0CR\2\0"),  # Canon,
    ("a raw file of a camera", FTYP + b"crx \0\0\0\1"),
    ("a raw file of a camera", b"FUJIFILMCCD-RAW 0201"),
    ("a raw file of a camera", b"IIRO\x08\0\0\0"),  # Olympus,
    ("a raw file of a camera", b"IIU\0\x18\0\0\0"),  # Panasonic,
    ("a raw file of a camera", tiff_of(COLORS, t254=1)),  # Nikon, Sony,
    ("a raw file of a camera", tiff_of(GRAY, t262=32_803)),  # Pentax,
    ("a raw file of a camera", tiff_of(GRAY, t50706=0x0401)),  # and Adobe's DNG.
]
KINDS_OF_TIFF = [
    ("floating-point samples", encode(noise("F"), "TIFF")),
    ("signed samples", encode(noise("I"), "TIFF")),
    ("signed samples", tiff_of(GRAY, t339=2)),
    ("CMYK colors", encode(noise("CMYK"), "TIFF")),
    ("CIELAB colors", encode(noise("LAB"), "TIFF")),
    ("YCbCr colors", encode(noise("YCbCr"), "TIFF")),
    ("lossy compression", encode(noise(), "TIFF", compression="jpeg")),
    ("32 bits per sample", tiff_of(GRAY.astype(np.uint32))),
    ("12 bits per sample", tiff_of(GRAY, t258=12)),
    ("several pages", encode(noise(), "TIFF", save_all=True, append_images=[noise()])),
    ("16 bits and zero for white", tiff_of(GRAY, t262=0)),
    ("16-bit planes", tiff_of(COLORS, t284=2)),
    ("16-bit gray and other channels", tiff_of(random_samples(2), t338=2)),
    ("colors multiplied by alpha", tiff_of(random_samples(4), t338=1)),
]


@pytest.mark.parametrize("convert", [to_png, to_jpeg])
def test_other_formats_are_refused_by_name(convert, tmp_path):
    for kind, data in REFUSED:
        with pytest.raises(UserError, match=rf"^a\.tif is {kind}, which isn't read\. "):
            convert(data, "a.tif")
    for kind, data in KINDS_OF_TIFF:
        with pytest.raises(
            UserError, match=f"it is a TIFF with .*{kind}; expected one"
        ):
            convert(data, "a.tif")
    path = tmp_path / "photo.jpg"
    path.write_bytes(REFUSED[1][1])
    with pytest.raises(UserError, match=r"photo\.jpg is HEIC, which isn't read\. Conv"):
        Encoding("jpeg").read(path)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate"])
def test_usual_tiffs_have_the_pixels_of_a_png(mode, compression):
    image = noise("RGBA").convert(mode)
    data = encode(image, "TIFF", compression=compression)
    for convert in to_png, to_jpeg:
        expected = convert(encode(image, "PNG"), "x").data
        ours = convert(data, "x").data
        np.testing.assert_array_equal(decode(ours), decode(expected).convert("RGB"))
