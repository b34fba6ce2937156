"""An original image in a graph: a JPEG file that isn't decoded yet, or uint8 values.

It is a string scalar, or `[height, width, 3]` uint8.
"""

import tensorflow as tf


def _is_decoded(original: tf.Tensor) -> bool:
    return original.dtype == tf.uint8


def shape(original: tf.Tensor) -> tf.Tensor:
    """Returns height, width and channels, int32; of a JPEG, only the header is read."""
    if _is_decoded(original):
        return tf.shape(original)
    return tf.image.extract_jpeg_shape(original)


def decoded(original: tf.Tensor) -> tf.Tensor:
    """Returns the whole image, `[height, width, 3]` uint8."""
    return (
        original if _is_decoded(original) else tf.io.decode_jpeg(original, channels=3)
    )


def crop(original: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a crop of the original image, decoded; uint8.

    Only the blocks of a JPEG that the crop touches are decoded. If the JPEG has
    subsampled colours, the first and last column of the crop can differ slightly from
    those of the decoded whole, because the decoder lacks the neighbouring columns. The
    published runs used the same decoder.

    Args:
        original: The original image, JPEG-encoded or decoded.
        begin: The top and left position of the crop in pixels, int32 `[2]`.
        size: The height and width of the crop in pixels, int32 `[2]`.
    """
    if _is_decoded(original):
        return tf.slice(original, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
    window = tf.concat([begin, size], 0)
    return tf.image.decode_and_crop_jpeg(original, window, channels=3)
