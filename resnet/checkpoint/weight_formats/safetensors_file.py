"""Files of the format safetensors: a JSON header, then the arrays' bytes.

The first 8 bytes are the length of the header, little-endian. The header has for each
array its dtype, its shape, and where its bytes begin and end after the header.

Source: huggingface/safetensors, README.md, section "Format".
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats.stored import WeightFile

_METADATA = "__metadata__"
_DESCRIPTION = "resnet_cpu"  # The key of what our exports say about a network.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # The upper half of a float32, which NumPy doesn't have.
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if name != "BF16"}
_ALIGNMENT = 8  # Alignment of the header, in bytes.
_LONGEST_HEADER = 100_000_000  # As in the format's own reader.


def open_file(path: Path) -> WeightFile:
    """Opens a file; bfloat16 is read as float32.

    Raises:
        UserError: If it isn't a file of this format, is cut short, or has a dtype of
            which no weights are.
        OSError: If it can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise _is_other(path, "it begins with no header")
        text = file.read(length)
    try:
        entries = json.loads(text)
        metadata = entries.pop(_METADATA, {})
        arrays = {
            name: _checked(one, size - 8 - length) for name, one in entries.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _is_other(path, f"its header is wrong: {error}") from error

    def read(name: str) -> np.ndarray:
        dtype, shape, begin = arrays[name]
        values = np.fromfile(
            path, _DTYPES[dtype], math.prod(shape), offset=8 + length + begin
        )
        if dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(shape)

    shapes = {name: shape for name, (_, shape, _) in arrays.items()}
    return WeightFile(shapes, read, _settings(metadata))


def _settings(metadata: Any) -> dict[str, Any]:
    """Returns the settings in the metadata of an export of ours; empty without them."""
    try:
        settings = json.loads(metadata[_DESCRIPTION])
    except (ValueError, TypeError, KeyError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _checked(entry: Any, num_bytes: int) -> tuple[str, tuple[int, ...], int]:
    """Returns the dtype, the shape and the beginning of an array.

    Args:
        entry: What the header has about the array.
        num_bytes: The number of bytes after the header.

    Raises:
        ValueError: If the dtype isn't known or the array isn't in the file.
    """
    dtype, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
    begin, end = map(int, entry["data_offsets"])
    if dtype not in _DTYPES:
        raise ValueError(f"expected a dtype among {', '.join(_DTYPES)}; got {dtype}")
    expected = math.prod(shape) * _DTYPES[dtype].itemsize
    if min(shape, default=0) < 0 or begin < 0 or end - begin != expected:
        raise ValueError(f"the bytes {begin} to {end} are not those of shape {shape}")
    if end > num_bytes:
        raise ValueError(f"the file ends before byte {end} of its data")
    return dtype, shape, begin


def _is_other(path: Path, reason: str) -> UserError:
    return UserError(f"{path} must be a safetensors file; {reason}")


def write(
    file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Writes arrays to a file that is open for writing bytes.

    Args:
        file: The file.
        arrays: The arrays by their names, of dtypes that the format and NumPy have.
        metadata: Texts by their names, which the header has too.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    begin = 0
    # As the format's own writer does, so that readers find all values aligned.
    ordered = sorted(arrays.items(), key=lambda one: (-one[1].itemsize, one[0]))
    for name, array in ordered:
        end = begin + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, array in ordered:
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
