"""The documents: links lead somewhere, commands name programs and flags that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PROGRAM = re.compile(
    r"\b((?:resnet|eval|data_prep|launch|install)/[\w/]+\.(?:py|sh|slurm))"
)


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


def commands(page: Path) -> list[str]:
    """Returns the indented command lines of a page."""
    pattern = r"^ {4,}((?:python|mpirun|make|sbatch) .*)$"
    return re.findall(pattern, page.read_text(), re.M)


def flags_in(file: Path) -> set[str]:
    """Returns the flags that a table of docs/flags.md or a program's source names.

    Programs that aren't part of an installation are not in docs/flags.md.
    """
    text = file.read_text()
    if file.suffix == ".md":
        return set(re.findall(r"`--(\w+)`", text))
    if file.suffix == ".py":
        defined = r"(?:DEFINE|define)_\w+\(\s*\"(\w+)\"|add_argument\(\s*\"--(\w+)\""
        return {name for pair in re.findall(defined, text) for name in pair if name}
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_name_programs_and_flags_that_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    documented = flags_in(ROOT / "docs" / "flags.md")
    for command in commands(page):
        for path in PROGRAM.findall(command):
            assert (ROOT / path).exists(), command
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), command
            continue
        program = PROGRAM.search(command)
        if not program:
            continue
        known = documented | flags_in(ROOT / program[1])
        if "PEER" in command:  # What it stands for is defined in RESULTS.md.
            known |= flags_in(ROOT / "eval/peers/torch_resnet.py")
        arguments = command[program.end() :]
        for flag in re.findall(r" --(\w+)", arguments.partition("|")[0]):
            assert flag in known or flag.removeprefix("no") in known, command
