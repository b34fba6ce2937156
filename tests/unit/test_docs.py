"""The documents: what they name exists, and they keep to their limits."""

import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests import console_scripts
from tests.sources import ROOT, SOURCES

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DEMO = ROOT / "launch/jobs/demo.sh"
PROGRAM = re.compile(
    r"\b((?:resnet|eval|data_prep|launch|install)/[\w/]+\.(?:py|sh|slurm))"
)
COMMAND = rf"(?:(?:python|mpirun|make|sbatch) |{PROGRAM.pattern} -)"
DEVELOPMENT = ("BUILD_NOTES.md", "CONTRIBUTING.md", "docs/dev/")
GENERATED = ("docs/flags.md",)
MOST_WORDS = {"user": 42_000, "development": 15_000}
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
        *re.finditer(rf"^(?: {{4,}}| *run )(?P<it>{COMMAND}.*)$", text, re.M),
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
    assert len(re.findall("^ *run ", DEMO.read_text(), re.MULTILINE)) == 6
    assert sum("$DIR" in command for command in commands(DEMO)) == 6


def test_each_page_is_in_the_navigation_of_the_site():
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"- (\S+\.md)$", nav, re.M)
    paths = [str(page.relative_to(ROOT)) for page in PAGES]
    pages = [path.removeprefix("docs/").replace("README", "index") for path in paths]
    assert sorted(listed) == sorted(pages)


def test_the_documents_are_short():
    words = dict.fromkeys(MOST_WORDS, 0)
    for page in PAGES:
        path = str(page.relative_to(ROOT))
        kind = "development" if path.startswith(DEVELOPMENT) else "user"
        if path not in GENERATED:
            words[kind] += len(page.read_text().split())
    assert all(words[kind] <= most for kind, most in MOST_WORDS.items()), words


def test_the_messages_of_the_page_about_trouble_exist():
    page = (ROOT / "docs/troubleshooting.md").read_text().split("## Slow")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert len(messages) > 20
    sources = [*SOURCES.values(), (ROOT / "install/install.sh").read_text()]
    # A message is usually several literals, one on each line.
    code = re.sub(r"\"\n\s*f?\"", "", "\n".join(sources))
    forms = {text: ".*?".join(map(re.escape, text.split("..."))) for text in messages}
    assert not [text for text, form in forms.items() if not re.search(form, code)]


def module_of_docs(name: str) -> ModuleType:
    """Returns a program of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_chart_of_the_readme_is_that_of_the_results():
    speed_chart = module_of_docs("speed_chart")
    results = (ROOT / "RESULTS.md").read_text()
    assert speed_chart.CHART.read_text() == speed_chart.svg(results), "run `make docs`"
    labels = [label for label, *_ in speed_chart.rows(results)]
    assert any("Training, bfloat16, beside PyTorch" in label for label in labels)
    assert any("OpenVINO" in label for label in labels)


def test_the_page_of_flags_is_what_the_programs_declare():
    generator = module_of_docs("generate_flags")
    text = generator.PAGE.read_text()
    assert text == generator.page(), "run `make flags` and commit the page"
    assert "|  |" not in text  # A default that a program leaves unset is told.
    modules = {path[:-3].replace("/", ".") for path in generator.PROGRAMS}
    assert modules == set(console_scripts.modules().values())
