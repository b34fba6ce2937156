#!/usr/bin/env bash
# Sourced by the scripts of this folder: what pip takes from pip.conf and PIP_* variables.

# take_pip_sources PYTHON: lets pip know of a user's and a site's settings only how
# packages are reached. Others would install elsewhere (target, prefix, user), or other
# files (constraint, no-binary).
take_pip_sources() {
  local settings
  settings=$("$1" - <<'PY'
import ast, os, shlex, subprocess, sys

KEPT = "index-url extra-index-url find-links no-index trusted-host proxy cert client-cert"
KEPT += " default-timeout timeout retries cache-dir no-cache-dir keyring-provider use-feature"
command = [sys.executable, "-m", "pip", "config", "list"]
listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
settings = dict(line.split("=", 1) for line in listed.splitlines())
print("unset PIP_CONFIG_FILE", *(name for name in os.environ if name.startswith("PIP_")))
for section in ("global", "download", "install", ":env:"):  # The last one counts.
    for key in KEPT.split():
        if value := settings.get(f"{section}.{key}"):
            name = "PIP_" + key.upper().replace("-", "_")
            print(f"export {name}={shlex.quote(ast.literal_eval(value))}")
PY
  )
  eval "$settings"
  export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
}
