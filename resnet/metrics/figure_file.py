"""Figures as image files, whose suffix selects the format."""

import io
import pathlib
from typing import TYPE_CHECKING

from resnet.base import atomic_files
from resnet.base.errors import UserError

if TYPE_CHECKING:  # It takes a fifth of a second.
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_DOTS_PER_INCH = 110


def write(figure: "Figure", path: pathlib.Path, flag: str) -> None:
    """Writes a figure to a file, atomically.

    Args:
        figure: The figure.
        path: The file. Its folder is created if it doesn't exist.
        flag: The flag that gives the path, for errors.

    Raises:
        UserError: If the file can't be written, or its suffix is none of `SUFFIXES`.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{flag} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}; got"
            f" {path}"
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=_DOTS_PER_INCH)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.atomic_write_bytes(path, drawn.getvalue())
    except OSError as error:
        raise UserError(
            f"the file of {flag} can't be written; {path}: {error.strerror}. Name"
            " another."
        ) from error
