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

check_ranks() {
  local started=$SECONDS
  local check='
import signal
signal.alarm(180)  # For what waits for the other rank; a busy machine imports for minutes.
from mpi4py import MPI  # Before Horovod, as in resnet/distributed/communicator.py.
signal.alarm(0)
import tensorflow as tf
import horovod.tensorflow as hvd
signal.alarm(180)
hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum, name="check")
assert hvd.size() == MPI.COMM_WORLD.size == 2, f"two ranks were started; each sees {hvd.size()}"
assert float(total[0]) == 3.0, f"the sum of 1 and 2 over the ranks came out as {float(total[0])}"
'
  TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' timeout -k 10 900 \
    "$environment/bin/mpirun" -np 2 "$environment/bin/python" -c "$check" \
    </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "two ranks could not add two numbers (the last lines are above)." \
      "Where this node forbids MPI: make venv SELF_CHECK=no, and make check on another." >&2
    exit 1
  }
  echo "[check] two ranks: the all-reduce works ($((SECONDS - started)) s)"
}

check_ops() {
  TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' "$environment/bin/python" -c '
from resnet import native
print("[check]", native.describe())
' 2>"$log" || {
    tail -n 5 "$log" >&2
    echo "the C++ ops could not be checked (the last lines are above)." >&2
    exit 1
  }
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for what in "$@"; do "check_$what"; done
