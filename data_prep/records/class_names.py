"""Names of classes: their form."""

import unicodedata
from collections.abc import Sequence

from resnet.base.errors import UserError


def normalized(name: str) -> str:
    """Returns a name with composed characters (NFC), as classes are compared.

    Systems differ: in a folder's name, macOS may store an accent as a character.
    """
    return unicodedata.normalize("NFC", name)


def require_lines(names: Sequence[str]) -> None:
    """Raises UserError unless each name can be a line of a text file in UTF-8."""
    for name in names:
        is_utf8 = name.encode(errors="ignore") == name.encode(errors="surrogatepass")
        if not is_utf8 or "\n" in name or "\r" in name:
            raise UserError(
                "a class name must be one line of UTF-8, as in the label files of"
                f" exported networks; one is {name!a}. Convert the images with another"
                " name of its folder."
            )
