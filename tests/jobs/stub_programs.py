"""A clone with stand-ins for Python, pip and the compiler, for tests of install/."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Its environments hold copies of it. What it is called with is in LOG, by line.
_PYTHON = r"""#!/bin/bash
here=$(cd "$(dirname "$0")/.." && pwd)
case "$*" in
"-m venv "*)
  echo "venv ${*:3}" >>"$LOG"
  made=${*: -1}
  mkdir -p "$made/bin" "$made/lib/python3.11/site-packages"
  cp "$0" "$made/bin/python"
  echo "#!$made/bin/python" >"$made/bin/tool"
  echo "command = $made" >"$made/pyvenv.cfg" ;;
"-m pip --version") ;;
"-m pip -qq install "*)
  echo "pip $here" >>"$LOG"
  [ -z "$PIP_FIND_LINKS" ] ||
    echo "from $PIP_FIND_LINKS, no index: $PIP_NO_INDEX" >>"$LOG"
  [ -z "$OFFLINE" ] || { echo "no network" >&2; exit 1; }
  mkdir -p "$here/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info"
  printf '#!/bin/sh\necho mpirun >>"%s"\n%s\n' "$LOG" "$MPIRUN_DOES" >"$here/bin/mpirun"
  chmod +x "$here/bin/mpirun" ;;
"-m pip download "*)  # Keeps the requirements that are not in the clone.
  echo "download ${*:4}" >>"$LOG"
  case ${@: -1} in /*) cp "${@: -1}" wheels/ ;; esac ;;
*_base_executable*) echo "$0" ;;
*"; javascript.script()"*) touch "$here/charts" ;;  # Quicker than real.
*"resnet import native"*) echo "[check] compiled ops: as asked" ;;
*"import tensorflow"*)
  printf '%s\n' -isystem "$here/tensor flow/include" -D_OF_TENSORFLOW \
    '' "-L$here/tensor flow" -l:libtensorflow_framework.so.2 ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""
# It writes what it was called with as its output, and refuses a source named REFUSED.
_COMPILER = r"""#!/bin/bash
case "$*" in
*--version) echo "g++ stub"; exit ;;
*" -E "* | "-E "*) exec "$REAL_CPP" -P $MACROS ;;
esac
for word; do
  [ "$word" = "${REFUSED:-none}" ] && { echo "error: $word" >&2; exit 1; }
  [ "$last" = -o ] && output=$word
  last=$word
done
printf '#!/bin/sh\n' >"$output"
printf '# %s\n' "$@" >>"$output"
chmod +x "$output"
"""


class Clone:
    """A clone whose set-up takes a tenth of a second.

    Attributes:
        folder: The clone.
        programs: A folder of programs that come first on PATH.
        log: A file with the calls of the stand-ins.
    """

    def __init__(self, tmp_path: Path, name: str = "a clone") -> None:
        self.folder = tmp_path / name
        self.programs = tmp_path / "programs"
        self.log = tmp_path / "log"
        self.log.touch()
        shutil.copytree(ROOT / "install", self.folder / "install")
        for name in ("requirements", "requirements-dev", "requirements-build"):
            shutil.copy(ROOT / f"{name}.txt", self.folder)
        for name in ("setup.py", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        native = self.folder / "resnet/native"
        native.mkdir(parents=True)
        for source in (ROOT / "resnet/native").glob("*.cc"):
            (native / source.name).touch()
        (native / "one.h").touch()
        self.program("python3", _PYTHON)
        self.program("g++", _COMPILER)

    def program(self, name: str, text: str) -> Path:
        """Writes a program that comes first on PATH."""
        self.programs.mkdir(exist_ok=True)
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(
        self, script: str, *arguments: str, **environment: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Returns the end of a script of install/."""
        return self._run([f"install/{script}", *arguments], environment)

    def run_make(self, target: str) -> subprocess.CompletedProcess[str]:
        """Returns the end of a target of the Makefile, which the clone must have."""
        return self._run(["make", target], {})

    def run_python(self, *arguments: str) -> None:
        """Runs the stand-in for Python."""
        assert self._run(["python3", *arguments], {}).returncode == 0

    def _run(
        self, words: list[str], environment: dict[str, str | None]
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": f"{self.programs}:{os.defpath}",
            "HOME": str(self.folder.parent / "home"),
            "LOG": str(self.log),
            "REAL_PYTHON": sys.executable,
            "REAL_CPP": shutil.which("cpp"),
            "OFFLINE": "",
            "MPIRUN_DOES": "exit 0",
            "MACROS": "-D__x86_64__=1 -U__clang__",
            **environment,
        }
        return subprocess.run(
            words,
            cwd=self.folder,
            env={key: value for key, value in variables.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def calls(self) -> list[str]:
        """Returns what has been called since the last time."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines
