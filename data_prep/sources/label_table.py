"""Lists the images of a table, CSV or TSV, that names their paths and classes.

path,label,split
cats/1.jpg,cat,train
"""

import csv
import io
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from data_prep.records.class_names import normalized
from data_prep.records.manifest import TRAIN
from data_prep.sources import folders, imagenet_labels
from data_prep.sources.image_list import ImageList, Source
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.text import first_of

_COLUMNS = (  # Names of each column, in any case; only the last one may be missing.
    ("path", "file", "filename", "file_name", "filepath", "image"),
    ("label", "class", "class_name", "category"),
    ("split", "subset"),
)
_DELIMITERS = (",", "\t", ";")  # The last one is what spreadsheets write in Europe.
_MAX_BYTES = 2**31


class _Row(NamedTuple):
    line: int  # Its last line in the file, from 1.
    path: str  # Of the image, relative to the folder of all.
    label: str
    split: str = TRAIN  # As in the table, in lower case.


def read(
    table: pathlib.Path, root: pathlib.Path, validation_split: str | None = None
) -> Source:
    """Returns the images of the rows, whose paths are relative to `root`, by class.

    Without a column for the split, all are for training. Raises UserError, with the
    number of the line, if a row isn't as expected.
    """
    rows: dict[str, _Row] = {}
    missing: list[_Row] = []
    for row in _rows(table):
        first = rows.setdefault(row.path, row)
        if row is first and not os.path.isfile(root / row.path):
            missing.append(row)
        if row[2:] != first[2:]:
            raise UserError(
                f"each image in {table} must have one class and split; line {row.line}"
                f" names {row.path!r} as {row.label!r} ({row.split}), line"
                f" {first.line} as {first.label!r} ({first.split}). Remove one of them."
            )
    if missing or not rows:
        line, path = missing[0][:2] if missing else (1, "nothing else")
        raise UserError(
            f"{table} must name image files, relative to {root}; {len(missing):,} of"
            f" {len(rows):,} are missing, first {path!r} in line {line}. Correct the"
            " paths, or name their folder: --raw_data_dir=FOLDER."
        )
    lines = {row.split: row.line for row in rows.values()}
    choice = validation_split and validation_split.lower()
    chosen = folders.choose_splits(lines, choice, str(table))
    for name, line in lines.items():
        if folders.split_of(name) is None and name not in chosen.values():
            raise UserError(
                f"line {line} of {table} must name a split, such as train, validation"
                f" or that of --validation_split; it names {name!r}"
            )
    by_class = sorted(rows.values(), key=lambda row: (row.label, row.path))
    splits: dict[str, ImageList] = {}
    class_names: tuple[str, ...] = ()
    for split, name in chosen.items():
        entries = [(row.label, root, row.path) for row in by_class if row.split == name]
        splits[split] = folders.list_images(table, entries, class_names)
        class_names = splits[split].class_names
    num_left = len(rows) - sum(map(len, splits.values()))
    return Source(
        class_names=class_names,
        class_descriptions=imagenet_labels.describe(class_names),
        splits=splits,
        description={"raw_data_dir": str(root), "labels": str(table)},
        warnings=(f"rows of other splits, left out: {num_left:,}",) * (num_left > 0),
    )


def _rows(table: pathlib.Path) -> Iterator[_Row]:
    """Yields the rows of a table; each is by itself as expected."""
    try:
        text = regular_file.read_bytes(table, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--labels must name a table in UTF-8; reading {table} failed: {error}"
        ) from error
    first_line = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=first_line.count)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        skipinitialspace=True,
        strict=True,
    )
    try:
        header = next(reader, [])
        columns = _columns(table, header)
        for row in filter(None, reader):
            where = f"line {reader.line_num} of {table}"
            if len(row) != len(header):
                raise UserError(
                    f"{where} must have {len(header)} columns, as line 1; it has"
                    f" {len(row)}. Quote values that contain {delimiter!r}."
                )
            values = [row[index].strip() for index in columns]
            if "" in values:
                name = header[columns[values.index("")]]
                raise UserError(f"{where} must have a value as {name!r}; it is empty")
            path, label, split = (*values, TRAIN)[:3]
            path, label = os.path.normpath(path), normalized(label)
            yield _Row(reader.line_num, path, label, split.lower())
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of {table}: {error}") from error


def _columns(table: pathlib.Path, header: Sequence[str]) -> list[int]:
    """Returns the indices of the columns of `_COLUMNS` that the header names."""
    columns = []
    names = [name.strip().lower() for name in header]
    for known in _COLUMNS:
        fitting = [index for index, name in enumerate(names) if name in known]
        if len(fitting) > 1 or (not fitting and known is not _COLUMNS[-1]):
            raise UserError(
                f"line 1 of {table} must name one column {' or '.join(known)}; it"
                f" names {first_of(header, 20) or 'none'}. Rename one of them."
            )
        columns += fitting
    return columns
