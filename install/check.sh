#!/usr/bin/env bash
# Checks an environment: two ranks all-reduce a number (ranks), and the C++ ops load (ops).
#
#   install/check.sh ENVIRONMENT [ranks|ops ...]
#
# Without a second argument it checks both. `make check` calls it on a node that allows MPI.
set -euo pipefail
environment=$(CDPATH='' cd "$1" && pwd)
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
shift
[ $# -gt 0 ] || set -- ranks ops
export KERAS_HOME=/dev/null/keras  # Here Keras writes no file into the user's home.

say_cause() {  # Ends the check in the sentence of a rank that blames PYTHONPATH, if one does.
  grep -m 1 -o "error: .*PYTHONPATH.*" "$log" >&2 && exit 1
  return 0
}

check_ranks() {
  local started=$SECONDS
  local check='
from resnet.base import program  # It says in a sentence why an import fails.
import os, signal
from resnet.distributed import communicator
from resnet.hardware import placement
signal.alarm(180)  # For what waits for the other rank; a busy machine imports for minutes.
ranks = communicator.connect(placement.find_process_info(os.environ))
signal.alarm(0)
import tensorflow as tf
signal.alarm(180)
ranks.start_horovod()
assert ranks.collectives.num_ranks == 2, f"two ranks were started, not {ranks.collectives.num_ranks}"
mean = float(ranks.collectives.allreduce_mean([tf.constant(ranks.rank + 1.0)], ["check"])[0])
assert mean == 1.5, f"the mean of 1 and 2 over the ranks came out as {mean}"
'
  TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' timeout -k 10 900 \
    "$environment/bin/mpirun" -np 2 "$environment/bin/python" -c "$check" \
    </dev/null >"$log" 2>&1 || {
    say_cause
    tail -n 20 "$log" >&2
    echo "two ranks could not add two numbers (the last lines are above)." \
      "Where this node forbids MPI: make venv SELF_CHECK=no, and make check on another." >&2
    exit 1
  }
  echo "[check] two ranks: the all-reduce works ($((SECONDS - started)) s)"
}

check_ops() {
  TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' "$environment/bin/python" -c '
from resnet.base import program
from resnet import native
print("[check]", native.describe())
' 2>"$log" || {
    say_cause
    tail -n 5 "$log" >&2
    echo "the C++ ops could not be checked (the last lines are above)." >&2
    exit 1
  }
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for what in "$@"; do "check_$what"; done
