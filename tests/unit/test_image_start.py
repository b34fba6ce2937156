import struct

import pytest

from data_prep.sources import image_start
from tests.unit.encoded_images import encode, noise, plain


def start_of(kind: str, mode: str = "RGB", **options) -> bytes:
    image = noise().quantize(9) if mode == "P" else noise(mode)
    return encode(image, kind, **options)[: image_start.NUM_BYTES]


@pytest.mark.parametrize(
    ("start", "is_lossy"),
    [
        (start_of("JPEG"), True),
        (start_of("WEBP"), True),
        (start_of("WEBP", lossless=True), False),
        (start_of("PNG"), False),
        (start_of("BMP"), False),
        (start_of("GIF", "P"), False),
        (b"", False),
        (b"text", False),
        (b"RIFF" + struct.pack("<I", 4) + b"WAVE", False),
    ],
)
def test_lossy_formats_are_known_by_their_first_bytes(start, is_lossy):
    assert image_start.is_lossy(start) is is_lossy


def test_a_webp_with_metadata_counts_as_lossy():
    assert image_start.is_lossy(start_of("WEBP", lossless=True, icc_profile=b"p"))


def test_only_files_of_the_format_of_the_records_keep_their_size():
    jpeg = start_of("JPEG")
    assert image_start.keeps_its_size(jpeg, "jpeg")
    assert not image_start.keeps_its_size(jpeg, "png")
    for mode in ("RGB", "L", "1"):
        start = start_of("PNG", mode)
        assert image_start.keeps_its_size(start, "png")
        assert not image_start.keeps_its_size(start, "jpeg")
    for mode in ("P", "RGBA", "LA", "I;16"):  # A palette may have transparent colors.
        image = plain(mode, 0) if mode == "I;16" else noise("RGBA").convert(mode)
        start = encode(image, "PNG")[: image_start.NUM_BYTES]
        assert not image_start.keeps_its_size(start, "png")
    assert not image_start.keeps_its_size(start_of("PNG")[:20], "png")
