"""What --help and --helpfull print, and that the examples in them are commands."""

import re
import shlex
import sys
from importlib import import_module
from unittest import mock

import pytest

from resnet.base import cli
from tests import in_process
from tests.sources import MAINS, SOURCES

PROGRAMS = sorted(MAINS - {"resnet.watchdog.monitor"})  # Only the ranks start it.
WITH_TOPICS = {
    *("resnet.resnet_main", "launch.plan", "launch.estimate", "eval.resnet_eval"),
    *("eval.benchmark", "eval.lab.exchange_cost"),
}


def path_of(name: str) -> str:
    return f"{name.replace('.', '/')}.py"


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w,)?--(?:\[no\])?(\w+):", text, re.M)


def examples(name: str) -> list[list[str]]:
    """Returns the arguments of each example in a program's docstring."""
    description = import_module(name).__doc__.replace("\\\n", " ")
    path = path_of(name)
    lines = [line for line in description.splitlines() if f"python {path}" in line]
    return [
        shlex.split(re.split(r" (?:\||&&) ", line.split(path)[1])[0]) for line in lines
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_short_and_fits_a_terminal(name):
    done = in_process.run(import_module(name), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= cli.WIDTH
    assert len(flags_in(done.stdout)) <= 40


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_flag_of_a_program_with_topics_has_one(name):
    program = import_module(name)
    full = in_process.run(program, "--helpfull").stdout
    assert len(set(flags_in(full))) == len(flags_in(full))
    assert set(flags_in(full)) >= set(
        flags_in(in_process.run(program, "--help").stdout)
    )
    assert ("\nFlags:\n" in full) == (name not in WITH_TOPICS and bool(flags_in(full)))
    assert "\n--helpfull lists" not in full


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_parse_the_examples_of_its_help(name):
    given = examples(name)
    assert len(given) >= 2
    parsed = []

    def and_end(parse):
        def parse_and_end(*arguments, **options):
            line = parse(*arguments, **options)
            parsed.append(line.arguments)
            sys.exit(0)

        return parse_and_end

    with mock.patch.object(cli, "parse", and_end(cli.parse)):
        for arguments in given:
            done = in_process.run(import_module(name), *arguments)
            assert (done.returncode, done.stderr) == (0, ""), arguments
    assert len(parsed) == len(given)
    source = SOURCES[name]
    takes_arguments = "takes_arguments" in source
    assert all(takes_arguments or not rest for rest in parsed)
