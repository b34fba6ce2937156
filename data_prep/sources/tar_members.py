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
_SPARSE = b"S"  # Of a file whose content isn't one span.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class Member(NamedTuple):
    """A regular file in an archive."""

    name: str  # Whole path, with what isn't UTF-8 as surrogates.
    offset: int  # Of the first byte in the file with the archive.
    num_bytes: int


def members(file: BinaryIO, where: str) -> Iterator[Member]:
    """Yields the regular files of the archive that a file is."""
    if os.pread(file.fileno(), 6, 0).startswith(_COMPRESSED):
        raise UserError(
            f"{where} must be an uncompressed tar archive, in which images can be read"
            " at their offsets; it is compressed. Decompress it, for example with"
            " gunzip, bunzip2, unxz or zstd -d."
        )
    end = os.fstat(file.fileno()).st_size
    yield from members_between(file, where, 0, end)


def members_between(
    file: BinaryIO, where: str, start: int, end: int
) -> Iterator[Member]:
    """Yields the regular files of the archive from byte `start` to byte `end`.

    Raises UserError, which begins with `where`, if a member extends past the end, a
    header is corrupt or its kind unknown, or the archive's end marker is missing; an
    archive in another may lack it.
    """
    descriptor, position = file.fileno(), start
    long_name, long_size = b"", -1  # From the headers before that of a file.
    while start == 0 or position < end:
        header = os.pread(descriptor, _BLOCK, position)
        if header == _END:
            return
        try:
            kind, name, num_bytes = _parse(header)
        except ValueError as error:
            raise UserError(
                f"{where} is truncated or corrupt: at byte {position:,} there is"
                " neither a member nor the archive's end marker. Copy the archive"
                " again."
            ) from error
        name = long_name or name
        if long_size >= 0:
            num_bytes = long_size
        if kind in _EMPTY:
            num_bytes = 0
        position += _BLOCK
        if position + num_bytes > end:
            raise UserError(
                f"{where} is truncated: its member {_text(name)} needs"
                f" {position + num_bytes - end:,} more bytes. Copy the archive again."
            )
        if kind in (_LONG_NAME, _PAX):
            content = os.pread(descriptor, num_bytes, position)
            if kind == _LONG_NAME:
                long_name = content.split(b"\0", 1)[0]
            else:
                records = _pax_records(content, where)
                long_name = records.get(b"path", long_name)
                long_size = int(records.get(b"size", long_size))
        else:
            if kind == _SPARSE:
                raise _sparse(where)
            if kind in _FILES and not name.endswith(b"/"):
                yield Member(_text(name), position, num_bytes)
            long_name, long_size = b"", -1
        position += -(-num_bytes // _BLOCK) * _BLOCK


def _parse(header: bytes) -> tuple[bytes, bytes, int]:
    """Returns the type, the name and the size in a header; or raises ValueError."""
    if len(header) < _BLOCK:
        raise ValueError("truncated header")
    # The sum of all bytes, with those of the sum itself as spaces.
    if sum(header) - sum(header[148:156]) + 8 * 32 != _number(header[148:156]):
        raise ValueError("wrong checksum")
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


def _pax_records(content: bytes, where: str) -> dict[bytes, bytes]:
    """Returns the values of a pax header, of lines "length keyword=value"."""
    records = {}
    while content:
        length = content.split(b" ", 1)[0]
        if not length.isdigit() or not len(length) + 3 < int(length) <= len(content):
            raise UserError(
                f"{where} has a corrupt pax header. Copy the archive again."
            )
        line, content = content[: int(length)], content[int(length) :]
        keyword, _, value = line[len(length) + 1 : -1].partition(b"=")
        records[keyword] = value
    if any(keyword.startswith(b"GNU.sparse") for keyword in records):
        raise _sparse(where)
    if not records.get(b"size", b"0").isdigit():
        raise UserError(f"{where} has a corrupt pax header. Copy the archive again.")
    return records


def _sparse(where: str) -> UserError:
    return UserError(f"{where} must not have sparse members; write it without --sparse")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
