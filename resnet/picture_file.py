"""Drawings as files, whose suffix says the format."""

import io
import pathlib

from matplotlib.figure import Figure

from data_prep import atomic_files
from data_prep.errors import UserError

SUFFIXES = (".png", ".svg", ".pdf")
_DOTS_PER_INCH = 110


def write(figure: Figure, picture: pathlib.Path, flag: str) -> None:
    """Writes a drawing, whole or not at all.

    Args:
        figure: The drawing.
        picture: The file; its folder is made if there is none.
        flag: That named the file, for the sentence of an error.

    Raises:
        UserError: If it can't be written, or its suffix is none of `SUFFIXES`.
    """
    if picture.suffix not in SUFFIXES:
        raise UserError(
            f"{flag} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}; got"
            f" {picture}"
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=picture.suffix[1:], dpi=_DOTS_PER_INCH)
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.atomic_write_bytes(picture, drawn.getvalue())
    except OSError as error:
        raise UserError(
            f"{flag} must be a file that can be written: {error}"
        ) from error
