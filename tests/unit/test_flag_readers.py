"""Only programs read flags; everything else gets values as arguments."""

import ast

from tests.sources import MAINS, SOURCES

FLAG_READERS = MAINS | {
    "resnet.setting_flags",
    "resnet.shared_flags",
    "resnet.train_flags",
    "resnet.base.errors",
    "resnet.base.cli",
    "resnet.base.program_help",
}


def test_only_programs_read_flags():
    found = [name for name in SOURCES if reads_flags(SOURCES[name])]
    assert sorted(set(found) - FLAG_READERS) == []


def reads_flags(source: str) -> bool:
    """Returns whether a source names FLAGS or imports absl's flags."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "FLAGS":
            return True
        if isinstance(node, ast.Attribute) and node.attr == "FLAGS":
            return True
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        else:
            continue
        if any(f"{name}.".startswith("absl.flags.") for name in names):
            return True
    return False


def test_readers_of_flags_are_found_in_every_form():
    for source in (
        "from absl import logging, flags",
        "from absl.flags import FLAGS",
        "import absl.flags",
        "x = FLAGS.a",
        "x = train.FLAGS.a",
    ):
        assert reads_flags(source), source
    assert not reads_flags("from absl import logging\nfrom resnet import shared_flags")
