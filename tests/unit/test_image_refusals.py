import struct

import pytest
from PIL import Image

from data_prep.conversion import image_encoding
from resnet.base.errors import UserError
from tests.unit.encoded_images import (
    encode,
    noise,
)


def test_an_image_too_wide_for_a_jpeg_is_refused_with_the_reason():
    wide = encode(Image.new("L", (70_000, 1)), "PNG")
    with pytest.raises(UserError) as caught:
        image_encoding.to_jpeg(wide, "a.png")
    assert str(caught.value) == (
        "a.png must have at most 65,500 pixels per side to be stored as JPEG; it has"
        " 70,000 x 1. Shrink it."
    )


def test_a_jpeg_too_wide_for_every_decoder_is_refused():
    data = bytearray(encode(noise(), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 1, 65_501)
    with pytest.raises(UserError, match=r"at most 65,500 pixels|can't be decoded"):
        image_encoding.to_jpeg(bytes(data) + bytes(2000) + b"\xff\xd9", "a.jpg")


def test_the_advice_for_an_empty_file_is_a_sentence():
    with pytest.raises(UserError, match=r"^a\.jpg is an empty file\. Replace it\.$"):
        image_encoding.to_jpeg(b"", "a.jpg")
