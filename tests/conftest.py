"""What holds for all tests."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from launch import topology
from resnet.hardware import cpu_features
from tests import tiny_set
from tests.made_once import made_once

Report = pytest.TestReport | pytest.CollectReport

# Hypothesis fails tests slower than 0.2 s, and a busy machine makes any test slow. Its
# examples are others in each run, so a run needs fewer than the 100 of its default.
hypothesis.settings.register_profile("ours", deadline=None, max_examples=40)
hypothesis.settings.load_profile("ours")

# Before any test imports TensorFlow: no talk on standard error, no search for a GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if cpu_features.amx_is_hidden(cpu_features.flags()):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# A shell lets what it starts in the background ignore SIGINT, and so would all programs
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # Likewise under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out tests of what this machine lacks (`needs_cpu`, `needs_cores`).

    Unlike a skip under CI, it is no failure: no set-up can add it.
    """
    lacking = [item for item in items if not _has_what_it_needs(item)]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]


def _has_what_it_needs(item: pytest.Item) -> bool:
    return all(
        cpu_features.flags().issuperset(mark.args)
        for mark in item.iter_markers("needs_cpu")
    ) and all(
        len(topology.probe().cores) >= mark.args[0]
        for mark in item.iter_markers("needs_cores")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    """Turns a skip into a failure under CI, where it would hide a hole."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure under CI: {report.longrepr}"
    return report


pytest_make_collect_report = pytest_runtest_makereport  # Of a whole file.


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a converted set: 3 classes, 24 training and 11 validation images."""
    return made_once(tmp_path_factory, "tiny", tiny_set.make) / "records"
