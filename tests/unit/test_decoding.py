"""The pixels of a file: the same in records, training, prediction and serving."""

import struct
import zlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.images import image_encoding
from resnet import native
from resnet.data import decoding
from resnet.data.augmentation import preprocessing
from resnet.evaluation.predictor import Preprocessor
from resnet.export import tensorflow_formats
from tests.unit.encoded_images import (
    chunk,
    decode,
    encode,
    noise,
    png,
    png_header,
    to_jpeg,
    to_png,
)

HEIGHT, WIDTH = 16, 24  # Of all images here.
SIZE = 8  # Of the crops.
WINDOW = 9_000, 51_000  # Of samples of 16 bits.
RANDOM = np.random.default_rng(0)
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}


def random_png(
    depth: int, color_type: int, has_color: bool
) -> tuple[bytes, np.ndarray]:
    """Returns a PNG of noise, with a transparent color or not, and its pixels."""
    most = 2**depth
    values = RANDOM.integers(0, most, (HEIGHT, WIDTH, CHANNELS[color_type]))
    # Each value as `depth` bits, the highest first; rows begin at a byte.
    bits = values[..., np.newaxis] >> np.arange(depth)[::-1] & 1
    rows = np.packbits(bits.reshape(HEIGHT, -1).astype(np.uint8), axis=1)
    chunks = [png_header(depth, color_type)]
    alpha = np.full((HEIGHT, WIDTH, 1), 255)
    colors = values * 255 // (most - 1) if depth < 16 else values >> 8
    if color_type == PALETTE:
        table = RANDOM.integers(0, 256, (most, 4), np.uint8)
        chunks.append(chunk(b"PLTE", table[:, :3].tobytes()))
        colors = table[values[..., 0]].astype(int)
        if has_color:
            chunks.append(chunk(b"tRNS", table[:, 3].tobytes()))
            alpha = colors[..., 3:]
        colors = colors[..., :3]
    elif has_color:
        color = values[0, 0]
        chunks.append(chunk(b"tRNS", struct.pack(f">{len(color)}H", *color)))
        if depth == 8:  # Otherwise it is ignored.
            alpha = 255 * (values != color).any(-1, keepdims=True)
    elif color_type in (GRAY_ALPHA, RGB_ALPHA):
        colors, alpha = colors[..., :-1], colors[..., -1:]
    chunks.append(
        chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(r) for r in rows)))
    )
    pixels = np.round((colors * alpha + 255 * (255 - alpha)) / 255)
    return png(*chunks), np.broadcast_to(pixels, (HEIGHT, WIDTH, 3))


@pytest.mark.parametrize(
    ("depth", "color_type", "has_color"),
    [
        *((depth, GRAY, color) for depth in (1, 2, 4, 8, 16) for color in (0, 1)),
        *((depth, PALETTE, color) for depth in (1, 2, 4, 8) for color in (0, 1)),
        *((depth, RGB, color) for depth in (8, 16) for color in (0, 1)),
        *((depth, kind, 0) for depth in (8, 16) for kind in (GRAY_ALPHA, RGB_ALPHA)),
    ],
)
def test_every_png_has_the_same_pixels_as_a_record_and_converted(
    depth, color_type, has_color
):
    data, expected = random_png(depth, color_type, has_color)
    # A record of another program, and what ours stores of the file.
    np.testing.assert_array_equal(decoding.decode_png(tf.constant(data)), expected)
    stored = to_png(data, "x").data
    np.testing.assert_array_equal(tf.io.decode_png(stored, channels=3), expected)


def rgba() -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8))


JPEG = encode(noise(), "JPEG")
SERVED = {
    "JPEG": JPEG,
    "gray JPEG": encode(noise("L"), "JPEG"),
    "progressive JPEG": encode(noise(), "JPEG", progressive=True),
    "RGB JPEG": encode(noise(), "JPEG", keep_rgb=True),
    "film after a JPEG": JPEG + b"\0" * 50 + b"ftypmp42",
    "JPEG with a second image": encode(noise(), "MPO", save_all=True),
    **{mode: encode(noise(mode), "PNG") for mode in ("RGB", "L", "1", "P")},
    "RGBA": encode(rgba(), "PNG"),
    **{
        f"16 bits, color type {kind}{has_color:d}": random_png(16, kind, has_color)[0]
        for kind in (GRAY, RGB, GRAY_ALPHA, RGB_ALPHA)
        for has_color in (False, kind == RGB)
    },
    "palette": random_png(4, PALETTE, True)[0],
    "animation": encode(noise(), "PNG", save_all=True, append_images=[rgba()]),
    "profile": encode(noise(), "PNG", icc_profile=bytes(2_000_000)),
    "BMP": encode(noise(), "BMP"),
}
REFUSED = [
    ("is a CMYK JPEG", encode(noise("CMYK"), "JPEG")),
    ("is a GIF", encode(noise("P"), "GIF")),
    ("is a WebP", encode(noise(), "WEBP", lossless=True)),
    ("is AVIF or HEIC", b"\0\0\0\x18ftypheic" + bytes(90)),
    ("is a TIFF", encode(noise(), "TIFF")),
    ("is of another format", b"<html>"),
    ("is damaged", JPEG[:-50]),
    *(
        ("is a BMP that has not 24 bits per pixel", encode(image, "BMP"))
        for image in (noise("P"), noise("L"), noise("1"), rgba())
    ),
]


def serving(image_format: str, applies_exif: bool = False):
    """Returns the graph that decodes and crops the files of a batch in serving."""
    contents = mock.Mock(
        image_size=SIZE,
        crop="crop_then_resize",
        crop_fraction=0.875,
        image_format=image_format,
        apply_exif_orientation=applies_exif,
        encoding=image_encoding.Encoding(image_format, applies_exif, WINDOW),
    )
    signature = [tf.TensorSpec([None], tf.string)]
    graph = tf.function(tensorflow_formats._preprocessed, autograph=False)
    return tf.function(lambda files: graph(files, contents), input_signature=signature)


@pytest.mark.parametrize("image_format", ["jpeg", "png"])
def test_a_file_is_served_as_it_is_predicted_or_refused_with_the_reason(
    image_format, tmp_path
):
    with native.disabled():
        serve = serving(image_format)
        crop = SIZE, 0.875, "crop_then_resize", preprocessing.NOT_NORMALIZED
        predict = Preprocessor(*crop)
        images = serve(tf.constant(list(SERVED.values())))
        assert images.shape == (len(SERVED), SIZE, SIZE, 3)
        for (name, data), image in zip(SERVED.items(), images, strict=True):
            path = tmp_path / name
            path.write_bytes(data)
            encoding = image_encoding.Encoding(image_format, depth_window=WINDOW)
            expected = predict.of_file(path, encoding)
            np.testing.assert_array_equal(image, expected, err_msg=name)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        serve(tf.constant([JPEG, *(data for _, data in REFUSED)]))
    message = str(error.value)
    assert "image 0 of" not in message
    for index, (reason, _) in enumerate(REFUSED, start=1):
        assert f"image {index} of the batch, from 0, {reason}" in message
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"image 0 of .* damaged"):
        serve(tf.constant([JPEG[:-50]]))


def test_an_orientation_is_counted_if_it_is_not_applied_and_never_served_wrongly():
    exif = Image.Exif()
    exif[0x0112] = 6
    serve = serving("png", applies_exif=True)
    for kind in ("JPEG", "PNG"):
        upright, turned = encode(noise(), kind), encode(noise(), kind, exif=exif)
        assert not to_jpeg(upright, "x").ignores_orientation
        encoded = to_jpeg(turned, "x")
        assert encoded.ignores_orientation
        assert decode(encoded.data).size == (WIDTH, HEIGHT)
        assert not to_jpeg(turned, "x", True).ignores_orientation
        assert len(serve(tf.constant([upright, JPEG]))) == 2
        with pytest.raises(tf.errors.InvalidArgumentError, match="has an EXIF orient"):
            serve(tf.constant([turned]))


def test_texts_and_profiles_of_any_size_are_stored_unread():
    plain = encode(noise(), "PNG")
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2_000_000)))
    texts = chunk(b"tEXt", b"k\0" + b"x" * 900_000) * 80
    for data in (plain[:33] + text + plain[33:], plain[:33] + texts + plain[33:]):
        assert to_png(data, "x").data is data
        stored = to_jpeg(data, "x").data
        assert stored == to_jpeg(plain, "x").data
