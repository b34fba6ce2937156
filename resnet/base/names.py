"""Names that a user writes: of what there isn't, and of classes."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from resnet.base.errors import UserError

_MOST_LISTED = 8  # A sentence lists as many names, if something else lists them too.
_MOST_MEANT = 3


def nearest(
    name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> list[str]:
    """Returns at most three known names that a name may stand for, the best first.

    It is what the name is a synonym of; else those with all of its words, such as
    train_batch_size for batch_size; else those that are spelled about like it.
    """
    meant = {other: other for other in known} | dict(synonyms or {})
    if name in meant:
        return [meant[name]]
    words = set(re.split(r"[_\W]+", name.lower()))
    close = [other for other in meant.values() if words <= set(other.split("_"))]
    if not close:
        similar = difflib.get_close_matches(name, meant)
        close = [meant[other] for other in similar]
    return list(dict.fromkeys(close))[:_MOST_MEANT]


def did_you_mean(meant: Collection[str]) -> str:
    """Returns the question, after a space; nothing if nothing may be meant."""
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def unknown(what: str, name: object, known: Collection[str], listing: str = "") -> str:
    """Returns the sentence that something must have a known name, and the nearest.

    Many names are left to a `listing`, such as --help, if there is one.
    """
    allowed = f"one of {', '.join(known)}"
    if listing and len(known) > _MOST_LISTED:
        allowed = f"one of the {len(known)} names that {listing} lists"
    question = did_you_mean(nearest(str(name), known))
    return f"{what} must be {allowed}; got {name}.{question}"


def normalized(name: str) -> str:
    """Returns a name with composed characters (NFC), as classes are compared.

    Systems differ: in a folder's name, macOS may store an accent as a character.
    """
    return unicodedata.normalize("NFC", name)


def require_lines(class_names: Sequence[str]) -> None:
    """Raises UserError unless each name can be a line of a text file in UTF-8."""
    for name in class_names:
        is_utf8 = name.encode(errors="ignore") == name.encode(errors="surrogatepass")
        if not is_utf8 or "\n" in name or "\r" in name:
            raise UserError(
                "a class name must be one line of UTF-8, as in the label files of"
                f" exported networks; one is {name!a}. Convert the images with another"
                " name of its folder."
            )
