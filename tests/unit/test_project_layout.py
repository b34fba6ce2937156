"""Who may import what: the layers of the tree, read from the source."""

import re

import pytest

from tests.import_graph import all_imports, imports_of, is_below, top
from tests.sources import MAINS, ROOT, SOURCES

# From the bottom to the top. A module imports only from its own part and from lower
# layers, so there are no cycles.
LAYERS: tuple[set[str], ...] = (
    {"resnet.base"},
    {"resnet.hardware", "resnet.config", "data_prep"},
    {"resnet.native", "resnet.watchdog"},
    {"resnet.models", "resnet.distributed"},
    {"resnet.data", "resnet.exchange", "resnet.optim"},
    {"resnet.metrics", "resnet.runtime"},
    {"resnet.checkpoint", "resnet.selftest"},
    {"resnet.evaluation", "launch"},
    {"resnet.export", "resnet.report", "resnet.training"},
    {"resnet.resnet_main", "resnet.api", "eval"},
    {"resnet"},
)
# The layers within data_prep, whose programs are above all of them.
DATA_PREP_LAYERS: tuple[set[str], ...] = (
    {"data_prep.worker_processes"},
    {"data_prep.images"},
    {"data_prep.records"},
    {"data_prep.sources"},
    {"data_prep.conversion"},
    {"data_prep"},
)
# What may be imported from another folder, as path prefixes.
SHARED = {
    ("data_prep", "resnet"): {"resnet.base"},
    ("resnet", "data_prep"): {"data_prep.images", "data_prep.records"},
    ("eval", "data_prep"): {
        "data_prep.images",
        "data_prep.records",
        "data_prep.sources",
    },
    ("launch", "data_prep"): {"data_prep.records"},
}


def test_imports_are_read_from_every_form():
    source = "import a.b\nfrom x import m, f\nfrom . import n\ndef g():\n import late"
    source += "\n importlib.import_module('named')"
    modules = {"x", "x.m", "p", "p.q", "p.n"}
    expected = {"a.b", "x.m", "x", "p.n", "late", "named"}
    assert imports_of("p.q", source, modules) == expected
    assert imports_of("p", "from .n import f", modules) == {"p.n"}


def layer_of(name: str, layers: tuple[set[str], ...]) -> tuple[int, str]:
    """Returns the number of a module's layer, and the part of the layer it is in."""
    parts = {part: level for level, layer in enumerate(layers) for part in layer}
    part = max((part for part in parts if is_below(name, {part})), key=len)
    return parts[part], part


@pytest.mark.parametrize(
    ("package", "layers"), [("", LAYERS), ("data_prep", DATA_PREP_LAYERS)]
)
def test_imports_go_down(package, layers):
    """Also inside functions and for annotations only."""
    ours = {name for name in SOURCES if not package or is_below(name, {package})}
    wrong = []
    for name in ours:
        level, part = layer_of(name, layers)
        for imported in all_imports()[name] & ours:
            other_level, other_part = layer_of(imported, layers)
            if other_part != part and other_level >= level:
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_folders_import_only_what_others_share():
    wrong = []
    for name, imports in all_imports().items():
        for imported in imports:
            folders = (top(name), top(imported))
            if not is_below(imported, SHARED.get(folders, {top(imported)})):
                wrong.append(f"{name} imports {imported}")
            if folders[0] != "eval" and folders[1] == "eval":
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_nobody_imports_a_program():
    assert [name for name in all_imports() if all_imports()[name] & MAINS] == []


def test_setup_lists_every_package():
    listed = (ROOT / "setup.py").read_text(encoding="utf-8")
    packages = ("resnet", "data_prep")  # A wheel holds the others as mere files.
    folders = {path.parent for p in packages for path in (ROOT / p).rglob("*.py")}
    for folder in folders:
        assert f'"{".".join(folder.relative_to(ROOT).parts)}"' in listed


def test_the_workflow_calls_what_checks_everything_with_pinned_actions():
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    commands = re.findall(r"- run: (.+)", text)
    assert commands[-1] == ".ci/run"
    assert not [command for command in commands if "pytest" in command]
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)


# What only one module imports, apart from its own modules.
OWNERS = {
    "resnet.training.parameter_servers": "resnet.resnet_main",
    "horovod": "resnet.distributed.collectives",
    "mpi4py": "resnet.distributed.communicator",
}


@pytest.mark.parametrize("package", OWNERS)
def test_some_packages_are_imported_by_their_owner_alone(package):
    importers = {
        name
        for name, imports in all_imports().items()
        if any(is_below(imported, {package}) for imported in imports)
        and not is_below(name, {package})
    }
    assert importers == {OWNERS[package]}


def test_one_module_imports_the_flags_of_absl():
    """Everything else gets values as arguments."""
    flags = re.compile(r"absl(\.| import [^\n]*\b)flags\b")
    importers = {name for name, source in SOURCES.items() if flags.search(source)}
    assert importers == {"resnet.base.cli"}


def test_no_script_ends_a_pipe_before_all_is_read():
    """With pipefail, the writer's death of SIGPIPE would count as a failure, at times.

    `grep -q` and `grep -m` end at the first match.
    """
    ending_early = re.compile(r"\|\s*(\\\n\s*)?grep (-\w+ )*-\w*[qm]")
    assert ending_early.search("patchelf lib.so |\n  grep -qx libmpi.so.12")
    scripts = (*(ROOT / "install").rglob("*.sh"), *(ROOT / "launch/jobs").iterdir())
    texts = {path.name: path.read_text(encoding="utf-8") for path in scripts}
    assert len(texts) > 10
    assert [name for name, text in texts.items() if ending_early.search(text)] == []
