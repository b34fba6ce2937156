import resource
import subprocess
import sys

import pytest

from resnet.runtime import startup


@pytest.fixture
def limit():
    """The limit of open files, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_thousand_record_files_may_stay_open(limit):
    _, hard = limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    startup.allow_open_files()
    soft, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == (
        startup.OPEN_FILES
        if hard == resource.RLIM_INFINITY
        else min(hard, startup.OPEN_FILES)
    )
    assert unchanged == hard


def test_a_higher_limit_stays(limit):
    startup.allow_open_files()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    startup.allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_tensorflow_starts_without_packages_that_only_keras_plots_need():
    script = """
import sys
from resnet.runtime import startup
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
startup.start_tensorflow(Communicator(ProcessInfo()))
assert "keras" in sys.modules
assert not {"sklearn", "matplotlib"} & set(sys.modules)
import sklearn, matplotlib
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_was_imported_before_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    with startup._hidden(("json", "tabnanny")):
        assert sys.modules["json"].dumps(1) == "1"
        with pytest.raises(ImportError):
            import tabnanny
    import tabnanny

    assert sys.modules["tabnanny"] is tabnanny
