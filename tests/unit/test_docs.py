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
    known = set(re.findall(r"`--(\w+)`", (ROOT / "docs" / "flags.md").read_text()))
    known |= {"work_dir", "num_images", "image_size", "compile"}  # Of other programs.
    known |= {
        "output_dir",
        "methods",
        "seeds",
        "depths",
        "rows",
        "train_flags",
        "threads",
        *("num_workers", "speed", "steps_per_line"),  # Of sync_modes.py.
    }
    known |= {"submission_org", "submission_platform"}
    for command in commands(page):
        for path in PROGRAM.findall(command):
            assert (ROOT / path).exists(), command
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), command
            continue
        program = PROGRAM.search(command)
        arguments = command[program.end() :] if program else ""
        for flag in re.findall(r" --(\w+)", arguments.partition("|")[0]):
            assert flag in known or flag.removeprefix("no") in known, command
