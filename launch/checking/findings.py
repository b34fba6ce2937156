"""What a check finds: a line of its table, and sentences about what is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAMED = 4  # Further hosts are counted.


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        sentence: It, and what to do, as one sentence.
        prevents_run: Whether the job would fail or not be the planned one, rather than
            be slower.
    """

    sentence: str
    prevents_run: bool = True


@dataclass(frozen=True)
class Finding:
    """A line of the table.

    Attributes:
        name: What is checked.
        found: What is there, in a few words.
        problems: What is wrong with it.
        is_checked: Whether it could be checked.
    """

    name: str
    found: str
    problems: tuple[Problem, ...] = ()
    is_checked: bool = True

    @property
    def state(self) -> str:
        """The result in a word."""
        if self.problems:
            return "problem"
        return "ok" if self.is_checked else "-"


def names(hosts: Sequence[str]) -> str:
    """Returns the names of hosts in words; only the first few of many."""
    text = ", ".join(hosts[:_NAMED])
    more = len(hosts) - _NAMED
    return f"{text} and {more} more" if more > 0 else text


def by_value(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns each different value with its hosts, the most frequent one first.

    Args:
        values: The value of each host, by its name.
    """
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    return sorted(hosts.items(), key=lambda item: -len(item[1]))


def differences(values: Mapping[str, str]) -> str:
    """Returns the different values with their hosts, in words; empty if all are equal.

    Args:
        values: The value of each host, by its name.
    """
    found = by_value(values)
    if len(found) < 2:
        return ""
    return ", ".join(f"{value} on {names(hosts)}" for value, hosts in found)
