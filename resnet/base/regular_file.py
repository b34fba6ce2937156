"""Opens and reads files that a user names, without hanging on a named pipe."""

import errno
import hashlib
import os
import re
import stat
from typing import BinaryIO

_LINE_END = re.compile("\r\n|\r|\n")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to read its bytes; a folder, pipe or device is an OSError."""
    # Without O_NONBLOCK, opening a named pipe waits for a program that writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Returns the content of a regular file; a larger one is an OSError."""
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            what = f"{num_bytes:,} bytes are too many, at most {max_bytes:,}"
            raise OSError(errno.EFBIG, what, str(path))
        return file.read()


def sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a regular file in hexadecimal; raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_lines(path: str | os.PathLike[str], max_bytes: int) -> list[str]:
    """Returns the stripped lines of a UTF-8 text file, with line ends of any system.

    A byte-order mark is removed; the last line is empty behind a line end.
    """
    text = read_bytes(path, max_bytes).decode("utf-8-sig")
    return [line.strip() for line in _LINE_END.split(text)]
