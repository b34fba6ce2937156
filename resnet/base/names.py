"""Names that a user writes: which are meant by one that there isn't."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

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
