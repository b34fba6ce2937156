import pytest

from data_prep.images import jpeg_header
from tests.unit.encoded_images import encode, noise


def jpeg(mode: str = "RGB", **options) -> bytes:
    return encode(noise(mode), "JPEG", **options)


def insert(data: bytes, offset: int, segment: bytes) -> bytes:
    return data[:offset] + segment + data[offset:]


def test_a_header_says_what_the_image_is():
    data = jpeg(subsampling=2)
    header = jpeg_header.parse(data)
    assert header == jpeg_header.JpegHeader(
        process=jpeg_header.BASELINE,
        precision=8,
        height=16,
        width=24,
        sampling=((2, 2), (1, 1), (1, 1)),
        adobe_transform=None,
        is_sound=True,
        exif=b"",
        scan_start=data.index(b"\xff\xda") + 14,  # Marker, length, 1 + 3 * 2 + 3.
    )


@pytest.mark.parametrize(
    ("data", "attribute", "value"),
    [
        (jpeg(progressive=True), "process", jpeg_header.PROGRESSIVE),
        (jpeg("CMYK"), "adobe_transform", 0),
        (jpeg(exif=b"Exif\0\0MM\0*\0\0\0\x08"), "exif", b"MM\0*\0\0\0\x08"),
        (jpeg("CMYK"), "is_sound", True),
        # An EXIF segment may hold a small JPEG, which is passed over with it.
        (jpeg(exif=b"Exif\0\0" + jpeg("L")), "sampling", ((2, 2), (1, 1), (1, 1))),
    ],
)
def test_every_attribute_is_read(data, attribute, value):
    assert getattr(jpeg_header.parse(data), attribute) == value


@pytest.mark.parametrize(
    "segment",
    [
        b"\xff\xf0\0\x02",  # Reserved: libjpeg stops there.
        b"\xff\xd8",  # The start of a second image.
        b"\xff\xc4\0\x03\x04",  # A Huffman table without counts, and number 4.
        b"\xff\xc4\0\x13\0\x03" + bytes(15),  # Three codes of one bit.
        b"\xff\xc4\0\x14\0\x01" + bytes(15) + b"\x10",  # 16 bits of DC coefficient.
        b"\xff\xdb\0\x43\x04" + bytes(64),  # Quantization table number 4.
        b"\xff\xdb\0\x10" + bytes(14),  # A short one.
    ],
)
def test_what_stops_a_decoder_is_seen(segment):
    assert not jpeg_header.parse(insert(jpeg(), 2, segment)).is_sound


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_the_end_is_found_behind_all_scans(options):
    data = jpeg(**options)
    start = jpeg_header.parse(data).scan_start
    assert jpeg_header.find_end(data, start) == len(data) - 2
    assert jpeg_header.find_end(data + data, start) == len(data) - 2
    assert jpeg_header.find_end(data[:-2], start) is None
    # A comment with an end mark in it, before the end.
    commented = insert(data, len(data) - 2, b"\xff\xfe\0\x04\xff\xd9")
    assert jpeg_header.find_end(commented, start) == len(data) + 4
