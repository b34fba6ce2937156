"""docs/flags.md lists what the programs declare."""

import importlib.util

import pytest

from tests import console_scripts
from tests.sources import ROOT


@pytest.fixture(scope="module")
def generator():
    path = ROOT / "docs" / "generate_flags.py"
    spec = importlib.util.spec_from_file_location("generate_flags", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_programs_declare(generator):
    text = generator.PAGE.read_text()
    assert text == generator.page(), "run `make flags` and commit the page"


def test_every_console_script_is_on_the_page(generator):
    modules = {path[:-3].replace("/", ".") for path in generator.PROGRAMS}
    assert modules == set(console_scripts.modules().values())


def test_the_page_tells_what_a_program_leaves_unset(generator):
    assert "|  |" not in generator.page()
