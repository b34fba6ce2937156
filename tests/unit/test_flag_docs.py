"""docs/flags.md lists what the programs define."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests import console_scripts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location(
        "generate_flags", ROOT / "docs" / "generate_flags.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up.
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def flags(generator):
    return generator.all_flags()


def test_the_page_is_what_the_programs_define(generator, flags):
    page = generator.page(flags)
    assert generator.PAGE.read_text() == page, "run `make flags` and commit the page"


def test_every_console_script_is_on_the_page(generator):
    scripts = console_scripts.modules()
    assert {program.module for program in generator.PROGRAMS} == set(scripts.values())


def test_the_page_tells_what_a_program_leaves_unset(generator, flags):
    for program, of_program in flags.items():
        unset = {flag.name for flag in of_program if flag.default in (None, "")}
        assert set(program.unset) <= unset, program.path
        assert len(of_program) == len({flag.name for flag in of_program})


def test_an_enumeration_lists_its_values(generator):
    flag = generator.Flag("way", "m", "a", "Way to go | stay.", ("a", "b"))
    assert generator.meaning(flag) == r"Way to go \| stay. One of `a`, `b`."


def test_a_short_form_is_listed_with_its_flag(generator):
    program = generator.Program("a/b.py", "Does it.", {})
    flag = generator.Flag("ratio", "m", 0.5, "The ratio.", (), "K")
    assert "| `--ratio`, `-K` | `0.5` | The ratio. |" in generator.section(
        program, [flag]
    )
