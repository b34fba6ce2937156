"""The charts' library, Vega-Lite, as JavaScript that a page can hold.

The package vl-convert-python has Vega, Vega-Lite and vega-embed in it and puts them
into one file, which takes seconds. So the file is kept in the cache of this project.
"""

import importlib.metadata
import os
from pathlib import Path

from data_prep.records import manifest
from resnet.base import atomic_files

_PACKAGE = "vl-convert-python"


def script() -> str | None:
    """Returns the JavaScript that defines `vegaEmbed`; None without the package."""
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = manifest.cache() / "charts" / f"vega-{version}.js"
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        text = _bundle()
    if text is not None:
        _keep(path, text)
    return text


def _bundle() -> str | None:
    try:
        import vl_convert
    except ImportError:  # Built for another platform, or incomplete.
        return None
    # The package's types lack the argument's default.
    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    # It would end the element of the page that holds the script.
    return text.replace("</script", "<\\/script")


def _keep(path: Path, text: str) -> None:
    """Writes the file, if the cache can be written to."""
    try:
        os.makedirs(path.parent, exist_ok=True)
        atomic_files.atomic_write_bytes(path, text.encode())
    except OSError:
        return
