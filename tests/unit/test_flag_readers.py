"""Only the command line knows flags; everything else gets values as arguments."""

import re

from tests.import_graph import all_imports, is_below
from tests.sources import SOURCES


def test_one_module_imports_the_flags_of_absl():
    importers = {
        name
        for name, imports in all_imports().items()
        if any(is_below(imported, {"absl.flags"}) for imported in imports)
    }
    from_absl = {
        name
        for name, source in SOURCES.items()
        if re.search(r"from absl import [^\n]*\bflags\b", source)
    }
    assert importers | from_absl == {"resnet.base.cli"}
