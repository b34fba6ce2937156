"""Which modules of the repository import which, read from their sources."""

import ast
import functools

from tests.sources import SOURCES


def imports_of(name: str, source: str, modules: set[str]) -> set[str]:
    """Returns the full names of the modules that a source imports, at any depth.

    `from resnet import train` counts as `resnet.train` if that is a module, else as
    `resnet`; relative imports are spelled out, and `import_module("x")` counts too.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                is_package = any(module.startswith(name + ".") for module in modules)
                keep = len(parents) - node.level + is_package
                base = ".".join([*parents[:keep], *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in modules else base)
        elif isinstance(node, ast.Call) and node.args:
            function, first = node.func, node.args[0]
            called = getattr(function, "attr", getattr(function, "id", ""))
            if called in ("import_module", "__import__") and isinstance(
                first, ast.Constant
            ):
                found.add(str(first.value))
    return found


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Returns what each module imports, at any depth."""
    modules = set(SOURCES)
    return {name: imports_of(name, source, modules) for name, source in SOURCES.items()}


def top(name: str) -> str:
    """Returns the package at the top that a module lies in."""
    return name.split(".")[0]


def is_below(name: str, prefixes: set[str]) -> bool:
    """Returns whether a module is one of the prefixes or lies in one of them."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def everything_imported_by(name: str) -> set[str]:
    """Returns what a module imports, at any depth and through our other modules."""
    found, waiting = set(), [name]
    while waiting:
        more = all_imports().get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found
