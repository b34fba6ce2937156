"""The pixels of encoded images, inside the graph: training, evaluation and serving.

There is one definition of the pixels of a file (docs/data.md, "The pixels of a file").
`data_prep.images.image_encoding` applies it to files of all formats, without
TensorFlow; this module to JPEG and PNG files, and for serving to some BMP files.
An original image is the content of a JPEG file (string scalar) or already decoded
(`[height, width, 3]` uint8).
"""

from collections.abc import Callable

import tensorflow as tf

from data_prep.images import depth, image_encoding, png_data
from data_prep.images.image_encoding import Encoding

_ALPHA = 4  # The bit of a color type of PNG that has an alpha channel.
_CMYK = 4  # The number of components.
_START_BYTES = 34  # As many as the formats of serving need.
# In these patterns `\C` is any byte; `.` would be any character of UTF-8.
_BMP_24 = r"BM\C{26}\x18\x00\x00\x00\x00\x00"  # 24 bits a pixel, not compressed.
_NOT_SERVED = (
    ("GIF8", "a GIF"),
    (r"RIFF\C{4}WEBP", "a WebP"),
    (r"\C{4}ftyp", "AVIF or HEIC"),
    (r"(II\C\x00|MM\x00\C)", "a TIFF"),
    ("BM", "a BMP that has not 24 bits per pixel"),
)
_SERVED = "; serving reads JPEG (RGB or gray), PNG and BMP with 24 bits per pixel"
DAMAGED = "is damaged, or of a kind that TensorFlow can't decode"
# The tag of EXIF in either byte order, with an orientation that isn't upright.
_TURNED = (
    r"\C*(\x12\x01\x03\x00\x01\x00\x00\x00[\x02-\x08]\x00"
    r"|\x01\x12\x00\x03\x00\x00\x00\x01\x00[\x02-\x08])\C*"
)


def shape_of(original: tf.Tensor) -> tf.Tensor:
    """Returns height, width and channels, int32; of a JPEG, only the header is read."""
    if original.dtype == tf.uint8:
        return tf.shape(original)
    return tf.image.extract_jpeg_shape(original)


def decoded(original: tf.Tensor) -> tf.Tensor:
    """Returns the whole original image, `[height, width, 3]` uint8."""
    if original.dtype == tf.uint8:
        return original
    return tf.io.decode_jpeg(original, channels=3)


def crop(original: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a crop of the original image, decoded; uint8.

    `begin` is its top and left position and `size` its height and width in pixels,
    int32 `[2]`. Only the blocks of a JPEG that the crop touches are decoded. If the
    JPEG has subsampled colours, the first and last column of the crop can differ
    slightly from those of the decoded whole, because the decoder lacks the neighbouring
    columns. The published runs used the same decoder.
    """
    if original.dtype == tf.uint8:
        return tf.slice(original, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
    window = tf.concat([begin, size], 0)
    return tf.image.decode_and_crop_jpeg(original, window, channels=3)


def original_of(encoded: tf.Tensor, image_format: str) -> tf.Tensor:
    """Returns the original image of a record; the format is "jpeg" or "png"."""
    return decode_png(encoded) if image_format == "png" else encoded


def decode_png(encoded: tf.Tensor, depth_window: tuple[int, ...] = ()) -> tf.Tensor:
    """Returns a PNG in RGB over white, `[height, width, 3]` uint8.

    `depth.table` of the window says what samples of 16 bits become.
    """
    header = tf.strings.substr(encoded, png_data.BIT_DEPTH, 2)
    num_bits, color_type = tf.unstack(tf.io.decode_raw(header, tf.uint8), num=2)
    before_pixels = tf.strings.split(encoded, "IDAT", maxsplit=1)[0]
    # As `png_data.without_metadata`: a transparent color counts for 8 bits. The op's
    # own alpha of files that have none is wrong for fewer than 8 bits.
    has_color = _matches(before_pixels, r"\C*tRNS\C*")
    has_color &= (num_bits == 8) | (color_type == png_data.PALETTE)

    def pixels(channels: int) -> tf.Tensor:
        if not depth_window:  # The op keeps the upper 8 bits,
            return tf.io.decode_png(encoded, channels)
        # or takes 8 as the upper and the lower ones.
        samples = tf.io.decode_png(encoded, channels, tf.uint16)
        color, alpha = tf.split(tf.cast(samples, tf.int32), (3, channels - 3), -1)
        upper = depth.table(())
        table = tf.where(num_bits == 16, depth.table(depth_window), upper)
        return tf.concat([tf.gather(table, color), tf.gather(upper, alpha)], -1)

    return tf.cond(
        has_color | (tf.bitwise.bitwise_and(color_type, _ALPHA) > 0),
        lambda: _over_white(pixels(4)),
        lambda: pixels(3),
    )


def _over_white(rgba: tf.Tensor) -> tf.Tensor:
    """Returns what Pillow's `alpha_composite` returns over white."""
    color, alpha = tf.split(tf.cast(rgba, tf.int32), (3, 1), axis=-1)
    return tf.cast((color * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


def read_file(
    encoded: tf.Tensor, encoding: Encoding, then: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Returns `then` of the original image of a file without a `problem_of_file`.

    The file is read as in a record set that stores images so: in one of JPEG, other
    files are re-encoded as `Encoding.store` does.
    """

    def other() -> tf.Tensor:
        pixels = tf.cond(
            _is_png(encoded),
            lambda: decode_png(encoded, encoding.depth_window),
            lambda: tf.io.decode_bmp(encoded, channels=3),
        )
        if encoding.image_format != "jpeg":
            return then(pixels)
        options = {"quality": image_encoding.JPEG_QUALITY, "chroma_downsampling": False}
        return then(tf.io.encode_jpeg(pixels, **options))

    return tf.cond(tf.io.is_jpeg(encoded), lambda: then(encoded), other)


def problem_of_file(encoded: tf.Tensor, apply_exif_orientation: bool) -> tf.Tensor:
    """Returns why `read_file` must not read a file, or an empty string.

    It is the end of a sentence. An op fails for some damaged files.
    """

    def of_jpeg() -> tf.Tensor:
        is_cmyk = tf.image.extract_jpeg_shape(encoded)[2] == _CMYK
        return tf.where(is_cmyk, f"is a CMYK JPEG{_SERVED}", "")

    def of_other() -> tf.Tensor:
        start = tf.strings.substr(encoded, 0, _START_BYTES)
        problem = tf.constant(f"is of another format{_SERVED}")
        for pattern, kind in _NOT_SERVED:
            is_kind = _matches(start, pattern + r"\C*")
            problem = tf.where(is_kind, f"is {kind}{_SERVED}", problem)
        return tf.where(_is_png(encoded) | _matches(start, _BMP_24), "", problem)

    problem = tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_other)
    if not apply_exif_orientation:
        return problem
    is_turned = (problem == "") & _matches(encoded, _TURNED)
    turned = "has an EXIF orientation, which serving can't apply; rotate its pixels"
    return tf.where(is_turned, turned, problem)


def _is_png(encoded: tf.Tensor) -> tf.Tensor:
    start = tf.strings.substr(encoded, 0, len(png_data.SIGNATURE))
    return start == png_data.SIGNATURE


def _matches(text: tf.Tensor, pattern: str) -> tf.Tensor:
    return tf.strings.regex_full_match(text, pattern)
