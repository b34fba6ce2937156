"""EasyBuild reads its recipe, and ReFrame's suite passes on two ranks of this machine.

Both are in `.venv.reframe`. EasyBuild needs Debian's lmod (apt-get install lmod).
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.sources import ROOT

PROGRAMS = ROOT / ".venv.reframe/bin"
LMOD = Path("/usr/share/lmod/lmod/libexec/lmod")
RECIPE = next((ROOT / "install/easybuild").glob("*.eb"))
# Measured within seconds, in a band that other work doesn't leave.
FLAGS = "--model=resnet18 --image_size=64 --batch_size=4 --steps=4 --warmup_steps=1"
BAND = 0.7


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def test_easybuild_knows_the_dependencies_and_plans_the_set_up(tmp_path):
    if not LMOD.exists():
        pytest.skip(f"{LMOD} is not there: apt-get install lmod")
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    words = ["eb", str(RECIPE), f"--prefix={tmp_path}"]
    words += ["--allow-use-as-root-and-accept-consequences"]
    variables = {"PATH": path, "LMOD_CMD": str(LMOD), "HOME": str(tmp_path)}
    done = run(*words, "--dry-run", "--robot", **variables)
    assert done.returncode == 0, done.stderr
    modules = set(re.findall(r"\(module: (\S+)\)", done.stdout))
    name, version, toolchain = re.split(r"-(?=\d|gompi)", RECIPE.stem, maxsplit=2)
    assert {f"{name}/{version}-{toolchain}", "gompi/2025b"} < modules
    assert any(module.startswith("Python/") for module in modules)
    steps = run(*words, "--extended-dry-run", **variables).stdout
    assert re.search(r'running shell command "make -C \S+ venv SELF_CHECK=no', steps)


def reframe(folder: Path, *words: str, **extras: float) -> tuple[bool, list[dict]]:
    """Returns whether ReFrame's tests passed, and its report on each."""
    report = folder / "report.json"
    suite = ["-C", "tests/reframe/settings.py", "-c", "tests/reframe/suite.py"]
    done = run(
        str(PROGRAMS / "reframe"),
        "--run",
        f"--prefix={folder}",
        f"--report-file={report}",
        *suite,
        "-S",
        f"StepSpeed.flags={FLAGS}",
        *words,
        STEP_SPEED=json.dumps(extras),
    )
    assert report.exists(), done.stdout + done.stderr
    (session,) = json.loads(report.read_text())["runs"]
    return done.returncode == 0, session["testcases"]


@pytest.mark.multiprocess
def test_the_suite_passes_here_and_refuses_another_speed(tmp_path):
    passed, (case,) = reframe(tmp_path / "measured", "-n", "StepSpeed")
    assert passed, case
    (speed,) = (
        values[0] for name, values in case["perfvalues"].items() if "images" in name
    )
    passed, cases = reframe(tmp_path / "all", images_per_second=speed, band=BAND)
    results = {case["name"].split()[0]: case["result"] for case in cases}
    names = {"Start", "AllReduce", "OneRank", "SameBits", "StepSpeed"}
    assert passed, results
    assert results == dict.fromkeys(names, "pass")
    wrong = {"images_per_second": 100 * speed, "band": BAND}
    passed, (case,) = reframe(tmp_path / "other", "-n", "StepSpeed", **wrong)
    assert not passed
    assert case["fail_phase"] == "performance"
