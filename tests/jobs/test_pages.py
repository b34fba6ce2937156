"""The commands of the pages for each kind of user are ones that the programs take.

Programs run here, except that trainings are only described, with the number of ranks
of the real job. Schedulers and hosts are those of tests/cluster and tests/fault.
"""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from launch import place_shards, plan
from resnet import resnet_main
from resnet.base import cli
from tests import in_process, tiny_set
from tests.made_once import made_once

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    *("laptop", "slurm", "container", "server", "hosts", "offline"),
    *("from_pytorch", "troubleshooting", "admins"),
)
HOSTS = "node1\nnode2\n"  # The file that the page about hosts shows.
RUN_HERE = (plan, place_shards, resnet_main)


def commands(page: str) -> list[str]:
    """Returns the indented lines of a page, each of which is a command."""
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = re.findall(r"^ {4,}(\S.*)$", text, re.M)
    assert lines, page
    return lines


def programs(line: str) -> list[list[str]]:
    """Returns the programs of this project in a line of bash, with their arguments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        path = word.removeprefix("/opt/resnet-cpu/").removeprefix(
            "/scratch/resnet-cpu/"
        )
        if path.endswith(".py"):
            assert (REPOSITORY / path).is_file(), line
            calls.append([path])
        elif calls[-1] and word in {"|", ";", ">", "&&", "--"}:
            calls.append([])
        elif calls[-1]:
            calls[-1].append(word)
    return [call for call in calls if call]


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_take_the_commands_of_a_page(
    page, tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    digits = made_once(tmp_path_factory, "digits", tiny_set.make_digits)
    (tmp_path / "RECORDS").symlink_to(digits / "records")
    node = in_process.run(plan, "--probe", "--print=topology")
    (tmp_path / "node.json").write_text(node.stdout)
    for line in commands(page):
        for script in re.findall(r"launch/jobs/[\w.]+", line):
            assert (REPOSITORY / script).exists(), line
        for target in re.findall(r"\bmake (\w+)", line):
            makefile = (REPOSITORY / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.M), line
        for path, *arguments in programs(line):
            program = import_module(path.removesuffix(".py").replace("/", "."))
            cli.parse([path, *arguments], "", program.FLAGS, takes_arguments=True)
            if program not in RUN_HERE or "--hosts=hosts" in arguments:
                continue
            if program is place_shards:  # The digits are in one record file.
                arguments = [re.sub(r"nodes=\d+", "nodes=1", a) for a in arguments]
            if program is resnet_main:
                num_ranks = re.search(r"(?:-np|--ntasks=?) ?(\d+)", line)
                arguments = [
                    argument
                    for argument in arguments
                    if not argument.startswith(("--data_dir", "--initial_weights"))
                ]
                if "--list_recipes" not in arguments:
                    arguments.append("--explain")
                arguments.append(f"--num_ranks={num_ranks[1] if num_ranks else 1}")
            done = in_process.run(program, *arguments)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_is_left_out_which_the_readme_links(page):
    """Blocks that `commands` leaves out show files, and there is no other kind."""
    assert f"](docs/{page}.md)" in (REPOSITORY / "README.md").read_text()
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    assert "~~~" not in text
    assert "\t" not in text
    for language, block in re.findall(r"^ *```(.*)\n((?:.*\n)*?) *```", text, re.M):
        assert language == "lua" or block == HOSTS  # Lua: the file of a module.
