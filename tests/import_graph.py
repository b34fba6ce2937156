"""Which modules of the repository import which, read from their sources."""

import functools

from tests.imports import at_the_top, imports_of
from tests.sources import SOURCES


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Returns what each module imports, at any depth."""
    modules = set(SOURCES)
    return {name: imports_of(name, source, modules) for name, source in SOURCES.items()}


@functools.cache
def _imports_at_the_top(name: str) -> set[str]:
    """Returns what importing a module imports at once."""
    return imports_of(name, at_the_top(SOURCES.get(name, "")), set(SOURCES))


def top(name: str) -> str:
    """Returns the package at the top that a module lies in."""
    return name.split(".")[0]


def is_below(name: str, prefixes: set[str]) -> bool:
    """Returns whether a module is one of the prefixes or lies in one of them."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def everything_imported_by(name: str) -> set[str]:
    """Returns what importing one of our modules imports, through our modules.

    That is all it imports, at any depth; of the packages that it lies in, which are
    imported too, what they import at the top.
    """
    seen: set[str] = set()
    seen_parents: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        waiting += all_imports().get(current, set())
        parts = current.split(".")
        for parent in {".".join(parts[:end]) for end in range(1, len(parts))}:
            if parent not in seen_parents:
                seen_parents.add(parent)
                waiting += _imports_at_the_top(parent)
    return (seen | seen_parents) - {name}
