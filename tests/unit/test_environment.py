"""What the environment and the limits of a process say to libraries: settled, refused.

Real jobs in a hostile environment are in tests/jobs.
"""

import resource
import shlex
import sys
import threading
from types import SimpleNamespace

import keras
import pytest

from resnet.base import environment, errors, limits
from resnet.base.environment import DEFAULTS, KEPT, PROXIES, REMOVED, SET
from resnet.base.errors import UserError
from resnet.distributed import communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import preemption, program, startup, versions
from tests.in_process import _environment_kept
from tests.processes import completed
from tests.sources import ROOT

NUMBERS = {"num_intra_threads": 22, "num_inter_threads": 2, "kmp_blocktime": 1}
NAMES = [name.replace("*", "ANY") for name in (*KEPT, *REMOVED, *SET, *DEFAULTS)]


@pytest.mark.parametrize(
    ("name", "value", "settled"),
    [
        *((name, "proxy:3128", None) for name in ("http_proxy", "HTTPS_PROXY")),
        *((f"HOROVOD_{name}", "gloo", None) for name in ("CONTROLLER", "ELASTIC")),
        *((f"HOROVOD_{name}", "1", "1") for name in ("TIMELINE", "FUSION_THRESHOLD")),
        ("KERAS_BACKEND", "torch", "tensorflow"),
        ("KERAS_HOME", "/home/me", "/dev/null/keras"),
        ("TF_USE_LEGACY_KERAS", "1", None),
        ("TF_ENABLE_ONEDNN_OPTS", "0", None),
        ("TF_CPP_MIN_LOG_LEVEL", "0", "0"),
        ("TF_NUM_INTRAOP_THREADS", "7", "22"),  # It has a flag.
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math", None),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", None),
        ("OMP_NUM_THREADS", "7", "7"),
        ("CUDA_VISIBLE_DEVICES", "0", "-1"),
        ("TF_REMOTE_HANDLE_SKIP_WAIT_FOR_READY", "0", "1"),
        ("UCX_TLS", "tcp", "tcp"),  # The MPI library's are a site's.
    ],
)
def test_a_variable_is_settled_and_told_of(name, value, settled):
    environ = {name: value}
    told = environment.settle(environ, environment.changes(environ, NUMBERS))
    assert environ.get(name) == settled
    is_told = settled != value and not name.lower().startswith(("http", "cuda"))
    assert (f" {name} " in told) == is_told


@pytest.mark.parametrize("numbers", [NUMBERS, None])
def test_what_is_settled_stays_so(numbers):
    environ = dict.fromkeys([*NAMES, *PROXIES], "theirs")
    environment.settle(environ, environment.changes(environ, numbers))
    again = dict(environ)
    assert environment.settle(again, environment.changes(environ, numbers)) == ""
    assert again == environ
    # In a notebook, other code has GPUs and downloads.
    others = {"CUDA_VISIBLE_DEVICES": "theirs", "http_proxy": "theirs"}
    assert (others.items() <= environ.items()) == (numbers is None)


def test_the_docs_have_the_table():
    page = (ROOT / "docs/server.md").read_text()
    names = (*SET, *DEFAULTS, *KEPT, *REMOVED, *PROXIES)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_another_setting_of_keras_is_refused(monkeypatch):
    with _environment_kept():
        startup.import_tensorflow()
        for name, value in (("floatx", "float16"), ("epsilon", 0.1)):
            with monkeypatch.context() as patched:
                patched.setattr(keras.config, name, lambda value=value: value)
                with pytest.raises(UserError, match=f"Keras must have {name} .* call"):
                    startup.import_tensorflow()


def test_a_package_that_another_hides_is_refused(monkeypatch, tmp_path):
    versions.check_origins()
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=f"keras .* from {tmp_path}.* PYTHONPATH"):
        versions.check_origins()


@pytest.mark.parametrize(
    ("installed", "version"), [({"tensorflow"}, "2"), ({"tensorflow-cpu"}, "2")]
)
def test_either_name_of_tensorflow_counts_but_not_both(monkeypatch, installed, version):
    monkeypatch.setattr(
        versions, "_version_of", lambda name: "2" if name in installed else ""
    )
    assert versions._version("tensorflow") == version
    versions.check_origins()
    assert versions._version("horovod") == "0.28.1"  # As a wheel has it within.
    monkeypatch.setattr(versions, "_version_of", lambda name: "2")
    with pytest.raises(UserError, match="pip uninstall tensorflow tensorflow-cpu"):
        versions.check_origins()


@pytest.mark.parametrize(
    ("kind", "allowed", "words"),
    [
        (resource.RLIMIT_NOFILE, 20, r"64 open files \(ulimit -Hn\); .* allowed 20\."),
        (resource.RLIMIT_AS, 1 << 31, r"addresses \(ulimit -v\); .* 2,147,483,648\."),
        (resource.RLIMIT_FSIZE, 1 << 20, r"files of 10 MiB .* 1.0 MiB \(ulimit -f\)"),
    ],
)
def test_too_low_a_limit_is_named(monkeypatch, kind, allowed, words):
    limit = {kind: (allowed, allowed)}
    monkeypatch.setattr(resource, "getrlimit", lambda it: limit.get(it, (-1, -1)))
    monkeypatch.setattr(resource, "setrlimit", None)

    def check() -> None:
        if shortage := limits.describe_shortage(2, 0):
            raise UserError(shortage)
        communicator._check_shared_memory(ProcessInfo(0, 2, 0, 2))

    with pytest.raises(UserError, match=words):
        check()


def test_too_few_threads_end_a_program_in_a_sentence(monkeypatch, capsys):
    assert limits.describe_shortage(2, 0) == ""
    num_threads = threading.active_count()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert limits.describe_shortage(2, 1) == ""  # The first rank asks for all.
    assert program.run(lambda *_: None, []) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: more processes and threads must be allowed")
    assert message.count("\n") == 1
    assert threading.active_count() == num_threads


def test_an_import_of_the_environment_is_not_blamed_on_pythonpath(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    error = ImportError("failed to map segment from shared object", path=keras.__file__)
    assert errors.describe_failed_import(error) == ""


def test_a_stop_request_ends_a_wait_in_which_no_handler_is_called():
    never = threading.Event()
    asked = SimpleNamespace(seen="SIGTERM")
    with pytest.raises(preemption.Preempted):
        preemption.call_until_stopped(never.wait, asked)
    never.set()
    assert preemption.call_until_stopped(lambda: 5, SimpleNamespace(seen="")) == 5
    with pytest.raises(ZeroDivisionError):
        preemption.call_until_stopped(lambda: 1 / 0, None)


def test_pip_installs_into_the_environment_from_where_the_site_says(tmp_path):
    settings = "[global]\ntarget = /elsewhere\nindex-url = https://site/simple\n"
    (tmp_path / "pip.conf").write_text(f"{settings}[install]\nuser = true\n")
    python = shlex.quote(sys.executable)
    script = f". install/pip_settings.sh; take_pip_sources {python}; env"
    done = completed(
        ["bash", "-euc", script],
        cwd=ROOT,
        env={"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_PREFIX": "/x"},
        check=True,
    )
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert variables["PIP_INDEX_URL"] == "https://site/simple"
    assert variables["PIP_CONFIG_FILE"] == "/dev/null"
    assert not variables.keys() & {"PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
