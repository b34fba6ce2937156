"""Lists the images of a table, CSV, TSV or JSON lines, that names paths and classes.

path,label,split
cats/1.jpg,cat,train

{"path": "cats/1.jpg", "label": "cat", "split": "train"}
"""

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data_prep.records.manifest import TRAIN
from data_prep.sources import folders, imagenet_labels
from data_prep.sources.image_list import ImageList, Source
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.base.text import first_of

_COLUMNS = (  # Names of each column, in any case; only the last one may be missing.
    ("path", "file", "filename", "file_name", "filepath", "image"),
    ("label", "class", "class_name", "category"),
    ("split", "subset"),
)
_JSON_LINES = (".jsonl", ".ndjson")
_DELIMITERS = (",", "\t", ";")  # The last one is what spreadsheets write in Europe.
_MAX_BYTES = 2**31


class _Row(NamedTuple):
    line: int  # Its last line in the file, from 1.
    path: str  # Of the image, relative to the folder of all.
    label: str
    split: str = TRAIN  # As in the table, in lower case.
    group: str = ""  # Of which all images are on the same side; empty without any.


def read(
    table: pathlib.Path,
    root: pathlib.Path,
    validation_split: str | None = None,
    group_column: str | None = None,
) -> Source:
    """Returns the images of the rows, whose paths are relative to `root`, by class.

    Without a column for the split, all are for training. Raises UserError, with the
    number of the line, if a row isn't as expected.
    """
    rows: dict[str, _Row] = {}
    missing: list[_Row] = []
    for row in _rows(table, group_column):
        first = rows.setdefault(row.path, row)
        if row is first and not os.path.isfile(root / row.path):
            missing.append(row)
        if row[2:] != first[2:]:
            raise UserError(
                f"each image in {table} must have one class, split and group; line"
                f" {row.line} names {row.path!r} as {row.label!r} ({_place(row)}), line"
                f" {first.line} as {first.label!r} ({_place(first)}). Remove one of"
                " them."
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
    groups = [row.group for row in by_class if row.split == chosen.get(TRAIN)]
    num_left = len(rows) - sum(map(len, splits.values()))
    return Source(
        class_names=class_names,
        class_descriptions=imagenet_labels.describe(class_names),
        splits=splits,
        description={
            "raw_data_dir": str(root),
            "labels": str(table),
            **({"group_column": group_column} if group_column else {}),
        },
        groups=tuple(groups) if group_column else (),
        warnings=(f"rows of other splits, left out: {num_left:,}",) * (num_left > 0),
    )


def _place(row: _Row) -> str:
    return f"{row.split}, {row.group}" if row.group else row.split


def _rows(table: pathlib.Path, group_column: str | None) -> Iterator[_Row]:
    """Yields the rows of a table; each is by itself as expected."""
    try:
        text = regular_file.read_bytes(table, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--labels must name a table in UTF-8; reading {table} failed: {error}"
        ) from error
    is_json = table.suffix.lower() in _JSON_LINES
    lines = (_json_lines if is_json else _separated_lines)(table, text)
    _, header = next(lines)
    columns = _columns(table, header)
    if group_column:
        columns.append(_group_column(table, header, group_column))
    for number, cells in lines:
        values = [cells[index].strip() for index in columns]
        if "" in values:
            name = header[columns[values.index("")]]
            raise UserError(
                f"line {number} of {table} must have a value as {name!r}, text or a"
                " whole number"
            )
        group = values.pop() if group_column else ""
        path, label, split = (*values, TRAIN)[:3]
        path, label = os.path.normpath(path), normalized(label)
        yield _Row(number, path, label, split.lower(), group)


def _separated_lines(
    table: pathlib.Path, text: str
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the number and the cells of each line, as many as in the first one."""
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
        yield 1, header
        for row in filter(None, reader):
            if len(row) != len(header):
                raise UserError(
                    f"line {reader.line_num} of {table} must have {len(header)}"
                    f" columns, as line 1; it has {len(row)}. Quote values that contain"
                    f" {delimiter!r}."
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of {table}: {error}") from error


def _json_lines(table: pathlib.Path, text: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the keys of all objects, and the number and the values of each line."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise UserError(f"line {number} of {table} isn't JSON: {error}") from error
        if isinstance(row, dict):
            rows.append((number, row))
        elif line.strip():
            raise UserError(
                f'line {number} of {table} must be an object: {{"path": ...'
            )
    header = list(dict.fromkeys(key for _, row in rows for key in row))
    yield 1, header
    for number, row in rows:
        values = [row.get(key) for key in header]
        yield number, [str(v) if type(v) in (str, int) else "" for v in values]


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


def _group_column(table: pathlib.Path, header: Sequence[str], group: str) -> int:
    """Returns the index of the column that --group_column names."""
    names = [name.strip().lower() for name in header]
    if names.count(group.strip().lower()) != 1:
        raise UserError(
            f"--group_column={group} must name one column of {table}; they are"
            f" {first_of(header, 20) or 'none'}"
        )
    return names.index(group.strip().lower())
