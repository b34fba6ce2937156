"""An image file of any format, read as the converter would store it.

Does not import TensorFlow.
"""

import os

from data_prep.conversion import image_encoding
from data_prep.sources import image_start
from resnet.base import regular_file
from resnet.base.errors import UserError

_MAX_BYTES = 2**31  # More than any image that can be decoded has.


def read(
    path: str | os.PathLike[str],
    set_format: str | None,
    apply_exif_orientation: bool = False,
) -> tuple[bytes, str]:
    """Returns an image as the converter would store it, and its format.

    The format is "jpeg" or "png". The converter stores a set with a lossily compressed
    image as JPEG, and any other set as PNG. Without a set, an image is read as if it
    were one by itself.

    Args:
        path: Path of the file.
        set_format: Format of the images of the set that the network was trained on;
            None if it isn't known.
        apply_exif_orientation: Whether that set was converted with
            --apply_exif_orientation.

    Raises:
        UserError: If the file can't be read or decoded.
    """
    try:
        data = regular_file.read_bytes(path, _MAX_BYTES)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}.") from error
    is_lossy = image_start.is_lossy(data[: image_start.NUM_BYTES])
    encode, image_format = image_encoding.to_png, "png"
    if is_lossy or set_format == "jpeg":
        encode, image_format = image_encoding.to_jpeg, "jpeg"
    return encode(data, str(path), apply_exif_orientation).data, image_format
