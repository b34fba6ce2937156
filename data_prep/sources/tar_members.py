"""Reads the headers of tar archives: the names and the byte spans of their files.

It knows ustar, GNU's long names and pax headers. `tarfile` takes four times as long.
Source of the formats: POSIX.1-2017, pax, and the GNU tar manual, section D.
"""

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from resnet.base.errors import UserError

_BLOCK = 512  # Bytes of a header, and of what the content of a file is filled up to.
_END = bytes(_BLOCK)  # The end marker has two, of which some programs write one.
_FILES = b"\x0007"  # The types of files with content,
_EMPTY = b"123456"  # of links, devices, folders and pipes,
_LONG_NAME, _PAX = b"L", b"x"  # and of headers before that of a file.
_LINKS = b"12"  # Of which the first is also a file's second name.
_SPARSE = b"S"  # Of a file whose content isn't one span.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class Member(NamedTuple):
    """A regular file in an archive."""

    name: str  # Whole path, with what isn't UTF-8 as surrogates.
    offset: int  # Of the first byte in the file with the archive.
    num_bytes: int


def members(
    file: BinaryIO, where: str, start: int = 0, end: int = 0
) -> Iterator[Member]:
    """Yields the regular files of the archive from byte `start` to `end`; 0: the whole.

    Raises UserError, which begins with `where`, if it is compressed, a member extends
    past the end, a header is corrupt or of a sparse file, or the archive's end marker
    is missing; an archive in another may lack it.
    """
    end = end or os.fstat(file.fileno()).st_size
    position, name, num_bytes = start, b"", -1  # Of a file, from headers before its.
    while start == 0 or position < end:
        header = os.pread(file.fileno(), _BLOCK, position)
        if header == _END:
            return
        if header.startswith(_COMPRESSED) and position == 0:
            raise UserError(
                f"{where} is compressed; images can be read only from uncompressed tar"
                " archives. Decompress it, for example with gunzip or unxz."
            )
        try:
            kind, own_name, size = _parse(header)
            records = {}
            if kind == _PAX:
                content = os.pread(file.fileno(), size, position + _BLOCK)
                records = _pax_records(content)
        except ValueError as error:
            raise UserError(
                f"{where} is truncated or corrupt: at byte {position:,} there is"
                " neither a member nor the archive's end marker. Copy the archive"
                " again."
            ) from error
        position += _BLOCK
        if kind not in (_LONG_NAME, _PAX):
            name = name or own_name
            size = 0 if kind in _EMPTY else size if num_bytes < 0 else num_bytes
        if not 0 <= size <= end - position:
            raise UserError(
                f"{where} is truncated: its member {_text(name or own_name)} needs"
                f" {position + size - end:,} more bytes. Copy the archive again."
            )
        if kind == _LONG_NAME:
            name = os.pread(file.fileno(), size, position).split(b"\0", 1)[0]
        elif kind == _PAX:
            name = records.get(b"path", name)
            num_bytes = int(records.get(b"size", num_bytes))
        else:
            if kind in _LINKS:
                raise UserError(
                    f"{where} must hold files, not links as {_text(name)}; write it"
                    " with tar's --dereference --hard-dereference"
                )
            if kind in _FILES and not name.endswith(b"/"):
                yield Member(_text(name), position, size)
            name, num_bytes = b"", -1
        if kind == _SPARSE or any(key.startswith(b"GNU.sparse") for key in records):
            raise UserError(f"{where} must be written without tar's --sparse")
        position += -(-size // _BLOCK) * _BLOCK


def _parse(header: bytes) -> tuple[bytes, bytes, int]:
    """Returns the type, the name and the size in a header; or raises ValueError."""
    # The sum of all bytes, with those of the sum itself as spaces.
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if len(header) < _BLOCK or total != _number(header[148:156]):
        raise ValueError("not a header")
    name = header[:100].split(b"\0", 1)[0]
    # GNU's magic ends with a space, and has other fields instead of the prefix.
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return header[156:157], name, _number(header[124:136])


def _number(field: bytes) -> int:
    """Returns an octal number or, of 8 GB and more, GNU's binary one."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.split(b"\0", 1)[0] or b"0", 8)


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Returns the values of a pax header, of lines "length keyword=value"."""
    records = {}
    while content:
        length = content.split(b" ", 1)[0]
        if int(length) <= len(length):
            raise ValueError("not a length")
        line, content = content[: int(length)], content[int(length) :]
        keyword, _, value = line[len(length) + 1 : -1].partition(b"=")
        records[keyword] = value
    int(records.get(b"size", 0))  # Or ValueError.
    return records


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
