"""Lists the images in Parquet files, as Hugging Face's `datasets` writes them.

train-00000-of-00002.parquet    a column with the images, one with their classes

A value of an uncompressed column is one span of the file, behind its length: in a page
of values or, with others that occur again, in the dictionary before them. Source:
https://parquet.apache.org/docs/file-format/data-pages/encodings/.
"""

import contextlib
import itertools
import json
import mmap
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from data_prep.sources import container_files
from data_prep.sources.container_files import LabelledImage
from data_prep.sources.image_list import Source
from resnet.base.errors import UserError
from resnet.base.names import normalized

_EXTENSIONS = (".parquet",)
_LABELS = ("label", "labels", "class", "class_name", "category", "target")
_BYTES, _PATH = "bytes", "path"  # The fields of a column with images.
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}
_BATCH = 16  # Rows read at once: few, so that their memory is used again.
_LENGTH_BYTES = 4  # Little-endian, before each value.
_TAIL = 64  # Bytes at the end of an image, by which equal ones are looked up.


class _Columns(NamedTuple):
    """The columns with the images and their classes."""

    image: str
    is_struct: bool  # Whether the image is a field of it.
    label: str
    class_names: tuple[str, ...]  # Of labels that are numbers; or empty.


def find(root: pathlib.Path, validation_split: str | None = None) -> list[pathlib.Path]:
    """Returns the Parquet files in `root` and its folders `data` and of splits."""
    return container_files.find(root, validation_split, _EXTENSIONS)


def read(root: pathlib.Path, validation_split: str | None = None) -> Source:
    """Returns the images of the files that `find` finds; reads all of them.

    Raises UserError if a file is corrupt or its images are compressed, if there isn't
    one column with images and one with classes, or if a value is missing.
    """
    paths = find(root, validation_split)
    columns = [_columns(path) for path in paths]
    for path, other in zip(paths, columns, strict=True):
        if other != columns[0]:
            raise UserError(
                "all Parquet files must have the same columns with images and classes,"
                f" and the same classes; {path} has others than {paths[0]}"
            )
    return container_files.read(
        root,
        paths,
        validation_split,
        lambda path: _images(path, columns[0]),
        columns[0].class_names,
    )


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    """Gives the `pyarrow.parquet.ParquetFile`, whose errors become UserErrors."""
    try:
        import pyarrow.parquet  # Large, and needed only here.
    except ModuleNotFoundError as error:
        raise UserError(
            f"reading {path} needs the package {error.name}, which isn't installed."
            " Run: pip install pyarrow"
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is not a readable Parquet file: {reason}. Copy it again."
        ) from error


def _columns(path: pathlib.Path) -> _Columns:
    """Returns the columns of a file, as its schema and `datasets` metadata tell."""
    with _opened(path) as file:
        schema = file.schema_arrow
    import pyarrow.types as types

    features = _features(schema.metadata or {})
    structs, binaries, texts, numbers = [], [], [], []
    for field in schema:
        kind = field.type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_struct(kind) and kind.get_field_index(_BYTES) >= 0:
            structs.append(field.name)
        elif types.is_binary(kind) or types.is_large_binary(kind):
            binaries.append(field.name)
        elif types.is_string(kind) or types.is_large_string(kind):
            texts.append(field.name)
        elif types.is_integer(kind):
            numbers.append(field.name)

    def of_type(kind: str, names: Iterable[str]) -> list[str]:
        return [n for n in names if features.get(n, {}).get("_type") == kind]

    named = [name for name in (*numbers, *texts) if name.lower() in _LABELS]
    images = of_type("Image", (*structs, *binaries)) or structs or binaries
    labels = of_type("ClassLabel", numbers) or named or texts
    for what, fitting in (("images", images), ("classes", labels)):
        if len(fitting) != 1:
            raise UserError(
                f"{path} must have one column with the {what}; of"
                f" {', '.join(schema.names)} there fit"
                f" {', '.join(fitting) or 'none'}. Write a file with one of them."
            )
    names = features.get(labels[0], {}).get("names") or ()
    is_struct = images[0] in structs
    return _Columns(images[0], is_struct, labels[0], tuple(map(normalized, names)))


def _features(metadata: dict[bytes, bytes]) -> dict[str, dict[str, Any]]:
    """Returns what `datasets` knows of the columns; empty if it didn't write them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {key: value for key, value in features.items() if type(value) is dict}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _images(path: pathlib.Path, columns: _Columns) -> Iterator[LabelledImage]:
    """Yields the images of a file in their order."""
    with (
        _opened(path) as file,
        open(path, "rb") as content,
        mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        num_rows = 0
        for group in range(file.num_row_groups):
            start, end = _chunk(path, file.metadata.row_group(group), columns)
            images, rows = itertools.tee(_rows(file, group, columns))
            offsets = spans(data, start, end, (image or b"" for image, _, _ in images))
            for (image, name, label), offset in zip(rows, offsets, strict=True):
                if image is None or label in (None, "") or offset < 0:
                    problem = f"must have values as {columns.image} and {columns.label}"
                    raise UserError(
                        f"row {num_rows:,} of {path} {problem}, with the image's bytes"
                        " in one span. Write the file without such rows."
                    )
                filename = (name or "").rpartition("/")[2]
                filename = filename or f"{path.stem}-{num_rows:08d}"
                yield LabelledImage(str(path), filename, label, offset, len(image))
                num_rows += 1


def _rows(file: Any, group: int, columns: _Columns) -> Iterator[tuple[Any, ...]]:
    """Yields image, name and label of each row of a row group, or None."""
    names = [columns.image, columns.label]
    for batch in file.iter_batches(
        _BATCH, row_groups=[group], columns=names, use_threads=False
    ):
        images, filenames = batch.column(columns.image), [""] * len(batch)
        if columns.is_struct:
            index_of, fields = images.type.get_field_index, images.flatten()
            images = fields[index_of(_BYTES)]
            if index_of(_PATH) >= 0:
                filenames = fields[index_of(_PATH)].to_pylist()
        labels = batch.column(columns.label).to_pylist()
        yield from zip(images.to_pylist(), filenames, labels, strict=True)


def _chunk(path: pathlib.Path, group: Any, columns: _Columns) -> tuple[int, int]:
    """Returns the span of the images of a row group, which must be uncompressed."""
    name = f"{columns.image}.{_BYTES}" if columns.is_struct else columns.image
    chunks = map(group.column, range(group.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == name)
    if chunk.compression != "UNCOMPRESSED" or not {*chunk.encodings} <= _ENCODINGS:
        raise UserError(
            f"the column {name} of {path} must be uncompressed and in plain encoding,"
            " so that each image is one span of bytes; it has"
            f" {chunk.compression}, {' and '.join(chunk.encodings)}. Write a new file:"
            ' python -c "import pyarrow.parquet as p; p.write_table('
            f"p.read_table('{path}'), 'FOLDER/{path.name}', compression='none')\""
        )
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def spans(
    data: bytes | mmap.mmap, start: int, end: int, values: Iterable[bytes]
) -> Iterator[int]:
    """Yields the offset of each value in a chunk from byte `start` to byte `end`.

    They are mostly in the chunk's order, with headers of pages between; one that occurs
    again may be there once. The bytes at each offset have been compared with the value;
    -1 stands for one that isn't there.
    """
    earlier: dict[tuple[int, bytes], int] = {}
    position = start
    for value in values:
        stored = len(value).to_bytes(_LENGTH_BYTES, "little") + value
        key = len(value), value[-_TAIL:]
        offset = -1
        for expected in (position, earlier.get(key, end)):
            if offset < 0 and data[expected : expected + len(stored)] == stored:
                offset = expected
        for first in (position, start):
            if offset < 0:
                offset = data.find(stored, first, end)
        if offset >= 0:
            earlier[key] = offset
            position = max(position, offset + len(stored))
            offset += _LENGTH_BYTES
        yield offset
