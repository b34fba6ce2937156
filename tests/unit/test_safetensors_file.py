import json

import numpy as np
import pytest

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import safetensors_file

# What safetensors 0.6.2 writes: save({"b": float32 [[1, 2], [3, 4]], "a": int64 7},
# metadata={"format": "pt"}).
BY_THE_LIBRARY = bytes.fromhex(
    "90000000000000007b225f5f6d657461646174615f5f223a7b22666f726d6174223a227074227d2c"
    "2261223a7b226474797065223a22493634222c227368617065223a5b5d2c22646174615f6f666673"
    "657473223a5b302c385d7d2c2262223a7b226474797065223a22463332222c227368617065223a5b"
    "322c325d2c22646174615f6f666673657473223a5b382c32345d7d7d202020200700000000000000"
    "0000803f000000400000404000008040"
)


def stored(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    length = len(text) if length is None else length
    return length.to_bytes(8, "little") + text + data


def test_a_file_of_the_formats_own_writer_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(BY_THE_LIBRARY)
    file = safetensors_file.open_file(path)
    assert file.shapes == {"a": (), "b": (2, 2)}
    assert file.read("b").dtype == np.float32
    assert file.read("b").tolist() == [[1, 2], [3, 4]]
    assert file.read("a").tolist() == 7


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    arrays = {"b": np.array([[1, 2], [3, 4]], np.float32), "a": np.array(7, np.int64)}
    with (tmp_path / "a").open("wb") as file:
        safetensors_file.write(file, arrays, {"format": "pt"})
    assert (tmp_path / "a").read_bytes() == BY_THE_LIBRARY


def test_bfloat16_is_read_as_float32(tmp_path):
    # 1.0 is 3f80 and -2.5 is c020, the upper halves of float32.
    entry = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    path = tmp_path / "a.safetensors"
    path.write_bytes(stored({"x": entry}, bytes.fromhex("803f20c0")))
    values = safetensors_file.open_file(path).read("x")
    assert (values.dtype, values.tolist()) == (np.float32, [1.0, -2.5])


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it begins with no header"),
        (b"PK\x03\x04" + bytes(100), "it begins with no header"),
        (stored({}, length=100), "it begins with no header"),
        (stored(b"no json"), "its header is wrong"),
        (stored(b"[1]"), "its header is wrong"),
        (stored({"x": ENTRY}, bytes(7)), "the file ends before byte 8 of its data"),
        (
            stored({"x": {**ENTRY, "dtype": "F8"}}, bytes(8)),
            "expected a dtype among F64",
        ),
        (
            stored({"x": {**ENTRY, "shape": [3]}}, bytes(8)),
            "bytes 0 to 8 are not those",
        ),
        (
            stored({"x": {**ENTRY, "shape": [-1]}}, bytes(8)),
            "bytes 0 to 8 are not those",
        ),
        (stored({"x": {"dtype": "F32"}}), "its header is wrong: 'shape'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_path(tmp_path, content, reason):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        safetensors_file.open_file(path)
    assert str(caught.value).startswith(f"{path} must be a safetensors file; ")
    assert reason in str(caught.value)
