"""Lists the images of a table, CSV, TSV or JSON lines, that names paths and classes.

path,label,split
cats/1.jpg,cat,train

{"path": "cats/1.jpg", "label": "cat", "split": "train"}

With several labels an image they are a list in JSON lines, and else divided by | or ;.
"""

import csv
import dataclasses
import io
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data_prep.records import labels
from data_prep.records.manifest import TRAIN
from data_prep.sources import folders
from data_prep.sources.image_list import Entry, ImageList, Source
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
_SPREADSHEETS = b"PK\3\4", b"\xd0\xcf\x11\xe0"  # Of zip (xlsx, ods), and xls.

_Cell = str | list[str] | None  # None for a value of another type.


class _Row(NamedTuple):
    line: int  # Its last line in the file, from 1.
    path: str  # Of the image, relative to the folder of all.
    labels: tuple[str, ...]  # One, unless an image may have several.
    split: str = TRAIN  # As in the table, in lower case.
    group: str = ""  # Of which all images are on the same side; empty without any.


def read(
    table: pathlib.Path,
    root: pathlib.Path,
    validation_split: str | None = None,
    group_column: str | None = None,
    multi_label: bool = False,
) -> Source:
    """Returns the images of the rows, whose paths are relative to `root`, by class.

    With `multi_label` each has any number of labels, which are then in order of names.
    Without a column for the split, all are for training. Raises UserError, with the
    number of the line, if a row isn't as expected.
    """
    rows: dict[str, _Row] = {}
    missing: list[_Row] = []
    for row in _rows(table, group_column, multi_label):
        first = rows.setdefault(row.path, row)
        if row is first and not os.path.isfile(root / row.path):
            missing.append(row)
        if row[2:] != first[2:]:
            raise UserError(
                f"each image in {table} must have one class, split and group; line"
                f" {row.line} names {row.path!r} as {_place(row)}, line {first.line} as"
                f" {_place(first)}. Remove one of them, or give --multi_label for"
                " several labels in one row."
            )
    if not rows:
        raise UserError(f"{table} must have rows after its header; it has none.")
    if missing:
        line, path = missing[0][:2]
        raise UserError(
            f"{table} must name image files, relative to {root}; {len(missing):,} of"
            f" {len(rows):,} are missing, first {path!r} in line {line}. Correct the"
            " paths, remove these lines, or name their folder: --raw_data_dir=FOLDER."
        )
    lines = {row.split: row.line for row in rows.values()}
    choice = validation_split and validation_split.lower()
    chosen = folders.choose_splits(lines, choice, str(table))
    for name, line in lines.items():
        if folders.split_of(name) is None and name not in chosen.values():
            raise UserError(
                f"line {line} of {table} must name a split, such as train, validation"
                f" or that of --validation_split; it names {name!r}. Correct it, or"
                f" give --validation_split={shlex.quote(name)}."
            )
    by_class = sorted(rows.values(), key=lambda row: (row.labels, row.path))
    splits: dict[str, ImageList] = {}
    class_names: tuple[str, ...] = ()
    for split, name in chosen.items():
        of_split = [row for row in by_class if row.split == name]
        if multi_label:
            splits[split] = _with_labels(table, root, of_split, class_names)
        else:
            entries = [(row.labels[0], root, row.path) for row in of_split]
            splits[split] = folders.list_images(table, entries, class_names)
        class_names = splits[split].class_names
    groups = [row.group for row in by_class if row.split == chosen.get(TRAIN)]
    num_left = len(rows) - sum(map(len, splits.values()))
    return Source(
        class_names=class_names,
        splits=splits,
        description={
            "raw_data_dir": str(root),
            "labels": str(table),
            **({"group_column": group_column} if group_column else {}),
            **({"multi_label": True} if multi_label else {}),
        },
        groups=tuple(groups) if group_column else (),
        warnings=(f"rows of other splits, left out: {num_left:,}",) * (num_left > 0),
    )


def _place(row: _Row) -> str:
    names = ", ".join(map(repr, row.labels)) or "no label"
    return f"{names} ({', '.join(filter(None, (row.split, row.group)))})"


def _with_labels(
    table: pathlib.Path,
    root: pathlib.Path,
    rows: Sequence[_Row],
    known: tuple[str, ...],
) -> ImageList:
    """Returns images with labels; no known ones stand for theirs, in order of names."""
    names = known or tuple(sorted({name for row in rows for name in row.labels}))
    indices = {name: index for index, name in enumerate(names)}
    for row in rows:
        if unknown := set(row.labels) - set(names):
            raise UserError(
                f"each label in {table} must have images for training;"
                f" {min(unknown)!r} in line {row.line} has none"
            )
    if not names:
        raise UserError(f"{table} must name labels; all images have none")
    entries = (Entry(str(root), row.path, 0) for row in rows)
    lists = [[indices[name] for name in row.labels] for row in rows]
    images = ImageList.of(names, entries)
    several = labels.multi_hot(lists, len(names))
    return dataclasses.replace(images, several_labels=several)


def _rows(
    table: pathlib.Path, group_column: str | None, multi_label: bool
) -> Iterator[_Row]:
    """Yields the rows of a table; each is by itself as expected."""
    try:
        data = regular_file.read_bytes(table, _MAX_BYTES)
        if data.startswith(_SPREADSHEETS):
            raise UserError(
                f"--labels must name a table as text, CSV or TSV; {table} is a"
                " spreadsheet. Export it as CSV in UTF-8."
            )
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--labels must name a table in UTF-8; {table} has another encoding"
            f" ({error}). Export it as CSV in UTF-8."
        ) from error
    except OSError as error:
        raise UserError(
            f"--labels must name a table; reading {table} failed: {error}"
        ) from error
    is_json = table.suffix.lower() in _JSON_LINES
    lines = (_json_lines if is_json else _separated_lines)(table, text)
    header = list(map(str, next(lines)[1]))
    columns = _columns(table, header)
    if group_column:
        columns.append(_group_column(table, header, group_column))
    for number, cells in lines:
        values = [cells[index] for index in columns]
        names = _labels_in(values[1]) if multi_label else None
        texts = [value.strip() if isinstance(value, str) else "" for value in values]
        if names is not None:
            texts[1] = "several"
        if "" in texts:
            wrong = texts.index("")
            is_list = isinstance(values[wrong], list)
            raise UserError(
                f"line {number} of {table} must have a value as"
                f" {header[columns[wrong]]!r}, text or a whole number"
                + ", or as label a list of these with --multi_label" * is_list
                + ". Fill it in, or remove the line."
            )
        group = texts.pop() if group_column else ""
        path, label, split = (*texts, TRAIN)[:3]
        path = os.path.normpath(path)
        names = (label,) if names is None else names
        of_image = tuple(sorted(set(map(normalized, names))))
        yield _Row(number, path, of_image, split.lower(), group)


def _labels_in(cell: _Cell) -> Sequence[str] | None:
    """Returns the labels in a cell, maybe none; None if it holds none of the forms."""
    if isinstance(cell, str):
        cell = re.split(r"[|;]", cell)
    return cell and list(filter(None, map(str.strip, cell)))


def _separated_lines(
    table: pathlib.Path, text: str
) -> Iterator[tuple[int, Sequence[_Cell]]]:
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


def _json_lines(
    table: pathlib.Path, text: str
) -> Iterator[tuple[int, Sequence[_Cell]]]:
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
        yield number, [_cell(row.get(key)) for key in header]


def _cell(value: Any) -> _Cell:
    if isinstance(value, list):
        return list(map(str, value)) if {*map(type, value)} <= {str, int} else None
    return str(value) if type(value) in (str, int) else None


def _columns(table: pathlib.Path, header: Sequence[str]) -> list[int]:
    """Returns the indices of the columns of `_COLUMNS` that the header names."""
    columns = []
    names = [name.strip().lower() for name in header]
    for known in _COLUMNS:
        fitting = [index for index, name in enumerate(names) if name in known]
        if len(fitting) > 1 or (not fitting and known is not _COLUMNS[-1]):
            advice = "Rename one of them."
            if not any(name in of for of in _COLUMNS for name in names):
                advice = "If it is the first image, add a line path,label before it."
            raise UserError(
                f"line 1 of {table} must name one column {' or '.join(known)}; it"
                f" names {first_of(header, 20) or 'none'}. {advice}"
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
