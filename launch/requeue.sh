#!/usr/bin/env bash
# Runs a training in a Slurm job and queues the job again when its time is up: the batch files
# beside this one source it.
set -euo pipefail

# run_and_requeue COMMAND [ARGUMENT ...]: runs it to its end and exits with its code.
# Slurm tells the batch file's shell alone (--signal=B:USR1@120) that the time is nearly up.
# mpirun tells all ranks, which save and end with 75.
run_and_requeue() {
  training=
  first_signal=
  trap 'pass_on USR1' USR1
  trap 'pass_on TERM' TERM
  "$@" &
  training=$!
  [ -z "$first_signal" ] || kill -s "$first_signal" "$training" 2>/dev/null || true
  # A trap ends `wait`, which then has to begin again.
  while
    has_signal=
    code=0
    wait "$training" || code=$?
    [ -n "$has_signal" ]
  do :; done

  # 75: stopped, saved, and not done. TERM is scancel, which wants no other start, or an end
  # by Slurm, which queues again by itself what it has preempted.
  if [ "$code" = 75 ] && [ "$first_signal" != TERM ]; then
    scontrol requeue "$SLURM_JOB_ID" ||
      echo "$0: the job can't be queued again: call sbatch with the same file." >&2
  fi
  exit "$code"
}

# shellcheck disable=SC2317 # The traps call it.
pass_on() {
  first_signal=${first_signal:-$1}
  has_signal=1
  [ -z "$training" ] || kill -s "$1" "$training" 2>/dev/null || true
}
