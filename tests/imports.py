"""Reads which modules a Python source imports."""

import ast


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


def at_the_top(source: str) -> str:
    """Returns the imports of a source that importing it runs at once."""
    kinds = (ast.Import, ast.ImportFrom)
    lines = [ast.unparse(n) for n in ast.parse(source).body if isinstance(n, kinds)]
    return "\n".join(lines)
