"""HTML as text in which everything is escaped that isn't marked as HTML."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = ("img", "meta")  # Elements without an end.


class Html(str):
    """A text that is HTML already, and is not escaped again."""

    __slots__ = ()


def escaped(child: object) -> Html:
    """Returns a value as HTML, escaped unless it is `Html`."""
    return child if isinstance(child, Html) else Html(html.escape(str(child)))


def join(children: Iterable[object], separator: str = "") -> Html:
    """Returns the values one after the other, each escaped unless it is `Html`."""
    return Html(separator.join(map(escaped, children)))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Returns an element.

    Args:
        name: The name of the element.
        children: What it contains; escaped unless it is `Html`.
        attributes: Its attributes. A trailing "_" of a name is dropped, other "_"
            become "-". True stands for an attribute without a value; False and None
            leave it out.
    """
    texts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        texts.append(written if value is True else f'{written}="{escaped(value)}"')
    begin = Html(f"<{' '.join(texts)}>")
    return begin if name in _VOID else Html(f"{begin}{join(children)}</{name}>")


def table(
    caption: str,
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    class_: str | None = None,
) -> Html:
    """Returns a table in a frame that scrolls where the page is too narrow.

    The first cell of each row is its header.

    Args:
        caption: What the table shows.
        header: The headers of the columns.
        rows: The cells of each row.
        class_: The class of the table, for the style sheet.
    """
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = join(
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    )
    content = tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag("tbody", body),
        class_=class_,
    )
    return scrollable(content, caption)


def scrollable(content: Html, label: str) -> Html:
    """Returns a frame that scrolls sideways, also by keyboard."""
    return tag(
        "div", content, class_="scroll", role="group", tabindex=0, aria_label=label
    )


def folded(summary: object, *children: object) -> Html:
    """Returns children that are shown when the reader opens the summary."""
    return tag("details", tag("summary", summary), *children)


def in_script(value: Any) -> Html:
    """Returns a value as JSON that can stand in a script element.

    Numbers that aren't finite become null, since JSON has none.
    """
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
