"""The text of --help: what a program does, its examples, and its flags by topic."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from absl import flags

WIDTH = 80  # Columns of a terminal.
_OTHER_TITLE = "Flags"  # Title above the flags that no topic names.


@dataclass(frozen=True)
class Topic:
    """Flags about one matter, which stand together under a title.

    A topic may name flags that a program doesn't have, so that programs share it.

    Attributes:
        title: The title.
        names: The names of the flags that --help prints.
        more: The names of further flags, which only --helpfull prints.
    """

    title: str
    names: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def only_in_full(self) -> "Topic":
        """Returns the topic with all of its flags in --helpfull only."""
        return Topic(self.title, (), self.names + self.more)


def text(
    description: str,
    flag_values: flags.FlagValues,
    topics: Sequence[Topic] = (),
    is_full: bool = False,
) -> str:
    """Returns what --help or --helpfull prints, in lines of `WIDTH` characters.

    Args:
        description: The docstring of the program, which is printed as it is.
        flag_values: The flags of the program and of absl; absl's are left out.
        topics: The topics in their order. Flags that none of them names come first.
        is_full: Whether the flags that only --helpfull prints are among them.
    """
    own = {
        flag.name: flag
        for module, of_module in flag_values.flags_by_module_dict().items()
        if not module.startswith("absl.")
        for flag in of_module
    }
    named = {name for topic in topics for name in topic.names + topic.more}
    others = Topic(_OTHER_TITLE, tuple(sorted(own.keys() - named)))
    parts = [description]
    left = dict(own)  # A flag is printed with the first topic that names it.
    for topic in (others, *topics):
        names = topic.names + (topic.more if is_full else ())
        if printed := [left.pop(name) for name in names if name in left]:
            parts.append(_section(topic.title, printed))
    if left:
        parts.append(f"--helpfull lists {len(left)} more.\n")
    return "\n".join(parts).rstrip("\n")


def _section(title: str, of_topic: Iterable[flags.Flag]) -> str:
    return "\n".join([f"{title}:", *map(_entry, of_topic), ""])


def _entry(flag: flags.Flag) -> str:
    """Returns the lines about a flag: its name, meaning, values and default."""
    values = getattr(flag.parser, "enum_values", None)
    meaning = " ".join(str(flag.help).split())
    if values:  # Absl puts them before the text.
        meaning = meaning.split(">: ", 1)[-1]
    notes = [f"one of {', '.join(values)}"] if values else []
    default = flag.default
    if default is not None and default is not False and default != "":
        is_list = isinstance(default, list)
        notes.append(f"default: {', '.join(default) if is_list else default}")
    short = f"-{flag.short_name}," if flag.short_name else ""
    name = f"[no]{flag.name}" if flag.boolean else flag.name
    note = f" ({'; '.join(notes)})" if notes else ""
    return textwrap.fill(
        f"{short}--{name}: {meaning}{note}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
