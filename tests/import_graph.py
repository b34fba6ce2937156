"""Which modules of the repository import which, read from their sources."""

from tests.imports import at_the_top, imports_of
from tests.sources import SOURCES

IMPORTS = {
    name: imports_of(name, source, set(SOURCES)) for name, source in SOURCES.items()
}
PARENT_IMPORTS = {
    name: imports_of(name, at_the_top(source), set(SOURCES))
    for name, source in SOURCES.items()
}


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
        waiting += IMPORTS.get(current, set())
        parts = current.split(".")
        for parent in {".".join(parts[:end]) for end in range(1, len(parts))}:
            if parent not in seen_parents:
                seen_parents.add(parent)
                waiting += PARENT_IMPORTS.get(parent, set())
    return (seen | seen_parents) - {name}
