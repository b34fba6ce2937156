"""Names of classes: their form, and the classes of a set among those of a run."""

import os
import unicodedata
from collections.abc import Sequence

from resnet.base.errors import UserError
from resnet.base.text import first_of


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


def check_known(
    names: tuple[str, ...],
    known: tuple[str, ...],
    records_dir: os.PathLike[str],
    whose: str,
) -> None:
    """Raises UserError if a record set has a class that isn't among the known ones.

    The set may lack classes, or have them in another order. The error says whose
    classes the known ones are.
    """
    if unknown := sorted(set(names) - set(known)):
        raise UserError(
            f"the data set must have only classes of {whose}, which has {len(known):,}"
            f" ({known[0]}, ...); {len(unknown):,} of the {len(names):,} in"
            f" {records_dir} are others: {first_of(unknown)}. Name a --data_dir with"
            " the same classes."
        )
