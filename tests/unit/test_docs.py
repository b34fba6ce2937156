"""The documents: links lead somewhere, commands name programs and flags that exist."""

import functools
import importlib.util
import re
from pathlib import Path

import pytest

from tests import console_scripts
from tests.sources import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DEMO = ROOT / "launch/jobs/demo.sh"
PROGRAM = re.compile(
    r"\b((?:resnet|eval|data_prep|launch|install)/[\w/]+\.(?:py|sh|slurm))"
)
COMMAND = rf"(?:(?:python|mpirun|make|sbatch) |{PROGRAM.pattern} -)"
TRAINING, PLANNER = "resnet/resnet_main.py", "launch/plan.py"


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


def commands(page: Path) -> list[str]:
    """Returns the commands of a page, or those that the script of the demo runs.

    They are indented or fenced lines, and code in a sentence: a command, or the flags
    of a training with compression.
    """
    text = re.sub(r" *\\\n *", " ", page.read_text())
    fenced = "".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S))
    found = [
        *re.finditer(rf"^(?: {{4,}}|run )(?P<it>{COMMAND}.*)$", text, re.M),
        *re.finditer(rf"^ *(?P<it>{COMMAND}.*)$", fenced, re.M),
        *re.finditer(rf"`(?P<it>{COMMAND}[^`]*)`", text),
    ]
    flags = re.findall(r"`(-c [^`]*)`", text)
    return [one["it"] for one in found] + [f"{TRAINING} {one}" for one in flags]


@functools.cache
def flags_of(program: str) -> frozenset[str]:
    """Returns the flags of a program, long and short ones.

    Programs that aren't part of an installation are not in docs/flags.md; they have
    flags of their own, and some of the others.
    """
    page = (ROOT / "docs/flags.md").read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    texts = [sections[program]] if program in sections else sections.values()
    rows = [row for text in texts for row in re.findall(r"^\| (`.*?) \|", text, re.M)]
    known = {name for row in rows for name in re.findall(r"`--?(\w+)`", row)}
    known |= {"kmp_blocktime", "use_tpu"}  # Accepted, and listed nowhere.
    if program == PLANNER:
        known |= flags_of(TRAINING)
    if program not in sections:
        defined = r"(?:DEFINE|define)_\w+\(\s*\"(\w+)\"|add_argument\(\s*\"--(\w+)\""
        source = (ROOT / program).read_text()
        known |= {name for pair in re.findall(defined, source) for name in pair if name}
        known |= set(re.findall(r"^    (\w+): [^=]+ = setting\(", source, re.M))
    return frozenset(known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", [*PAGES, DEMO], ids=lambda page: page.name)
def test_the_commands_name_programs_and_flags_that_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(page):
        for path in PROGRAM.findall(command):
            assert (ROOT / path).exists(), command
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), command
            continue
        for part in re.split(r" -- | \| |=\"", command):
            if not (program := PROGRAM.search(part)):
                continue
            known = flags_of(program[1])
            if "PEER" in part:  # What it stands for is defined in RESULTS.md.
                known |= flags_of("eval/lab/torch_resnet.py")
            for flag in re.findall(r" --?([A-Za-z]\w*)", part[program.end() :]):
                assert flag in known or flag.removeprefix("no") in known, (flag, part)


def test_every_command_of_the_demo_is_checked():
    assert DEMO.read_text().count("\nrun ") == 6
    assert sum("$DIR" in command for command in commands(DEMO)) == 6


@pytest.fixture(scope="module")
def generator():
    path = ROOT / "docs" / "generate_flags.py"
    spec = importlib.util.spec_from_file_location("generate_flags", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_flags_is_what_the_programs_declare(generator):
    text = generator.PAGE.read_text()
    assert text == generator.page(), "run `make flags` and commit the page"
    assert "|  |" not in text  # A default that a program leaves unset is told.
    modules = {path[:-3].replace("/", ".") for path in generator.PROGRAMS}
    assert modules == set(console_scripts.modules().values())
