"""Who may import what: the directions of the tree, read from the source."""

import graphlib

from tests.import_graph import all_imports, is_below, top
from tests.imports import imports_of
from tests.sources import MAINS, PACKAGES, ROOT, SOURCES

# The watchdog's program has the rules of its package.
PROGRAMS = MAINS - {"resnet.watchdog.monitor"}
# What data_prep offers to the other packages: path prefixes, no TensorFlow below them.
DATA_PREP_SHARED = {
    "data_prep.records",
    "data_prep.errors",
    "data_prep.import_failures",
    "data_prep.atomic_files",
    "data_prep.program_help",
    "data_prep.image_file",
}
# What each package of data_prep may import of data_prep, as path prefixes.
DATA_PREP_DIRECTIONS = {
    "data_prep.errors": {"data_prep.import_failures", "data_prep.program_help"},
    "data_prep.program_help": set(),
    "data_prep.image_file": {
        "data_prep.conversion.image_encoding",
        "data_prep.errors",
        "data_prep.records",
        "data_prep.sources.image_start",
    },
    "data_prep.import_failures": set(),
    "data_prep.atomic_files": set(),
    "data_prep.worker_processes": {"data_prep.errors"},
    "data_prep.records": {
        "data_prep.errors",
        "data_prep.atomic_files",
        "data_prep.worker_processes",
    },
    "data_prep.sources": {"data_prep.errors", "data_prep.records"},
    "data_prep.conversion": {
        "data_prep.errors",
        "data_prep.atomic_files",
        "data_prep.worker_processes",
        "data_prep.records",
        "data_prep.sources",
    },
}
# What each package of resnet may import of resnet, as path prefixes.
RESNET_DIRECTIONS = {
    "resnet.hardware": set(),
    "resnet.native": {"resnet.hardware"},
    "resnet.augmentation": {"resnet.native"},
    "resnet.models": {"resnet.native"},
    "resnet.config": {"resnet.augmentation.names", "resnet.models.names"},
    "resnet.compression": {"resnet.config", "resnet.native"},
    "resnet.recipes": {"resnet.config"},
    "resnet.explain": {"resnet.config"},
    "resnet.optim": {"resnet.config", "resnet.native"},
    "resnet.watchdog": {"resnet.hardware"},
    "resnet.distributed": {"resnet.hardware", "resnet.watchdog"},
    "resnet.exchange": {"resnet.compression", "resnet.config", "resnet.distributed"},
    "resnet.data": {
        "resnet.augmentation",
        "resnet.config",
        "resnet.distributed",
        "resnet.hardware",
        "resnet.native",
    },
    "resnet.train_state": {
        "resnet.compression",
        "resnet.config",
        "resnet.distributed",
        "resnet.models",
        "resnet.optim",
    },
    "resnet.metrics": {
        "resnet.config",
        "resnet.distributed",
        "resnet.exchange",
        "resnet.hardware",
        "resnet.train_state",
        "resnet.watchdog",
    },
    "resnet.runtime": {
        "resnet.config",
        "resnet.data",
        "resnet.distributed",
        "resnet.hardware",
        "resnet.metrics",
        "resnet.models",
        "resnet.native",
        "resnet.watchdog",
    },
    "resnet.checkpoint": {
        "resnet.config",
        "resnet.distributed",
        "resnet.exchange",
        "resnet.runtime",
        "resnet.train_state",
    },
    "resnet.evaluation": {
        "resnet.augmentation",
        "resnet.checkpoint",
        "resnet.config",
        "resnet.data",
        "resnet.distributed",
        "resnet.metrics",
        "resnet.optim",
        "resnet.runtime",
        "resnet.train_state",
    },
    "resnet.export": {
        "resnet.augmentation",
        "resnet.checkpoint",
        "resnet.config",
        "resnet.distributed",
        "resnet.evaluation",
        "resnet.models",
        "resnet.native",
        "resnet.watchdog.history",
    },
    "resnet.report": {
        "resnet.checkpoint",
        "resnet.config",
        "resnet.evaluation.prediction_file",
        "resnet.metrics.jsonl",
        "resnet.recipes",
        "resnet.watchdog",
    },
    "resnet.train_step": {
        "resnet.config",
        "resnet.data",
        "resnet.exchange",
        "resnet.models",
        "resnet.optim",
        "resnet.train_state",
    },
    "resnet.synchronization": {
        "resnet.config",
        "resnet.distributed",
        "resnet.exchange",
        "resnet.train_state",
        "resnet.train_step",
    },
    "resnet.image_statistics": {"resnet.config", "resnet.data", "resnet.models"},
    "resnet.train": {
        "resnet.checkpoint",
        "resnet.config",
        "resnet.data",
        "resnet.distributed",
        "resnet.evaluation",
        "resnet.exchange",
        "resnet.image_statistics",
        "resnet.metrics",
        "resnet.runtime",
        "resnet.synchronization",
        "resnet.train_state",
        "resnet.train_step",
    },
    "resnet.async_training": {
        "resnet.checkpoint",
        "resnet.config",
        "resnet.data",
        "resnet.distributed",
        "resnet.evaluation",
        "resnet.hardware",
        "resnet.metrics",
        "resnet.models",
        "resnet.native",
        "resnet.runtime",
        "resnet.train_state",
        "resnet.train_step",
        "resnet.watchdog",
    },
    "resnet.run_plan": {
        "resnet.checkpoint.weight_formats",
        "resnet.config",
        "resnet.exchange.plan",
        "resnet.explain",
        "resnet.metrics.figure_file",
        "resnet.models.names",
        "resnet.recipes",
        "resnet.runtime.startup",
        "resnet.train_state",
    },
    "resnet.saved_run": {
        "resnet.checkpoint.retention",
        "resnet.checkpoint.step_dirs",
        "resnet.checkpoint.weight_formats",
        "resnet.config",
        "resnet.evaluation.prediction_file",
        "resnet.metrics.jsonl",
        "resnet.runtime",
        "resnet.watchdog.failure_file",
        "resnet.watchdog.history",
    },
    "resnet.network": {
        "resnet.config",
        "resnet.distributed",
        "resnet.evaluation",
        "resnet.export.contents",
        "resnet.hardware",
        "resnet.models.names",
        "resnet.runtime",
        "resnet.train_state",
    },
    "resnet.api": {
        "resnet.checkpoint",
        "resnet.config",
        "resnet.data",
        "resnet.distributed",
        "resnet.hardware",
        "resnet.models",
        "resnet.network",
        "resnet.recipes",
        "resnet.runtime",
        "resnet.train_state",
    },
    "resnet.flag_topics": set(),
    "resnet.setting_flags": {"resnet.config"},
    "resnet.shared_flags": {"resnet.config", "resnet.setting_flags"},
    "resnet.train_flags": {
        "resnet.config",
        "resnet.recipes",
        "resnet.setting_flags",
        "resnet.shared_flags",
    },
}
# What each folder may take from the others, as path prefixes; None: everything.
DIRECTIONS: dict[str, dict[str, set[str] | None]] = {
    "data_prep": {},
    "resnet": {"data_prep": DATA_PREP_SHARED},
    "eval": {
        "resnet": None,
        # An image file is read as the converter would store it.
        "data_prep": DATA_PREP_SHARED
        | {
            "data_prep.conversion.image_encoding",
            "data_prep.sources.folders",
            "data_prep.sources.image_start",
            "data_prep.sources.imagenet_labels",
        },
    },
    "launch": {
        "resnet": {
            "resnet.config",
            "resnet.recipes",
            "resnet.hardware",
            "resnet.models.names",
            "resnet.models.sizes",
            "resnet.shared_flags",
            "resnet.train_flags",
            "resnet.checkpoint.step_dirs",
            "resnet.checkpoint.retention",
            "resnet.watchdog.failure_file",
            "resnet.watchdog.history",
            "resnet.watchdog.parent_death",
            "resnet.runtime.preemption",
            "resnet.runtime.versions",
            "resnet.compression.message_sizes",
            "resnet.metrics.figure_file",
            "resnet.setting_flags",
            "resnet.flag_topics",
        },
        "data_prep": {
            "data_prep.errors",
            "data_prep.import_failures",
            "data_prep.program_help",
            "data_prep.records.balance",
            "data_prep.records.manifest",
        },
    },
}


# Read before TensorFlow is imported, or on machines without it.
def test_imports_are_read_from_every_form():
    source = "import a.b\nfrom x import m, f\nfrom . import n\ndef g():\n import late"
    source += "\n importlib.import_module('named')"
    modules = {"x", "x.m", "p", "p.q", "p.n"}
    expected = {"a.b", "x.m", "x", "p.n", "late", "named"}
    assert imports_of("p.q", source, modules) == expected
    assert imports_of("p", "from .n import f", modules) == {"p.n"}


def test_folders_import_only_downwards():
    wrong = []
    for name, imports in all_imports().items():
        package = top(name)
        for imported in imports:
            other = top(imported)
            if other not in PACKAGES or other == package:
                continue
            allowed = DIRECTIONS[package].get(other, set())
            if allowed is not None and not is_below(imported, allowed):
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_packages_import_only_downwards():
    for package, directions in (
        ("data_prep", DATA_PREP_DIRECTIONS),
        ("resnet", RESNET_DIRECTIONS),
    ):
        wrong = []
        for name in SOURCES:
            if top(name) != package or name == package or name in PROGRAMS:
                continue
            own = next((p for p in directions if is_below(name, {p})), name)
            allowed = {own} | directions.get(own, set())
            for imported in all_imports()[name]:
                if top(imported) == package and not is_below(imported, allowed):
                    wrong.append(f"{name} imports {imported}")
        assert wrong == []


def test_no_packages_import_each_other():
    """Also not through others, nor inside functions or for annotations only."""
    parts = {**DATA_PREP_DIRECTIONS, **RESNET_DIRECTIONS}

    def part_of(name: str) -> str:
        return next((p for p in parts if is_below(name, {p})), name)

    graph: dict[str, set[str]] = {}
    for name, imports in all_imports().items():
        others = {part_of(one) for one in imports if one in SOURCES} - {part_of(name)}
        graph.setdefault(part_of(name), set()).update(others)
    list(graphlib.TopologicalSorter(graph).static_order())  # Else raises CycleError.


def test_nobody_imports_a_program():
    assert [name for name in all_imports() if all_imports()[name] & MAINS] == []


def test_only_the_program_of_training_imports_asynchronous_training():
    package = {"resnet.async_training"}
    importers = {
        name
        for name, imports in all_imports().items()
        if any(is_below(one, package) for one in imports)
        and not is_below(name, package)
    }
    assert importers == {"resnet.resnet_main"}


def test_only_their_owners_import_horovod_and_mpi4py():
    owners = {
        "horovod": {"resnet.distributed.collectives"},
        "mpi4py": {"resnet.distributed.communicator"},
    }
    for library, owner in owners.items():
        importers = {
            name
            for name, imports in all_imports().items()
            if library in map(top, imports)
        }
        assert importers <= owner


def test_setup_lists_every_package():
    listed = (ROOT / "setup.py").read_text(encoding="utf-8")
    packages = ("resnet", "data_prep")  # A wheel holds the others as mere files.
    folders = {path.parent for p in packages for path in (ROOT / p).rglob("*.py")}
    for folder in folders:
        assert f'"{".".join(folder.relative_to(ROOT).parts)}"' in listed
