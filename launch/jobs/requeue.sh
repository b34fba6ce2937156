#!/usr/bin/env bash
# Runs a training in a Slurm job and requeues the job when its time limit is near. The batch
# files in this folder source it.
set -euo pipefail

# run_and_requeue COMMAND [ARGUMENT ...]: runs the command and exits with its exit code.
# Before the time limit, Slurm sends USR1 only to the shell of the batch file
# (--signal=B:USR1@120). mpirun forwards it to all ranks, which save and exit with 75.
run_and_requeue() {
  training=
  first_signal=
  trap 'pass_on USR1' USR1
  trap 'pass_on TERM' TERM
  "$@" &
  training=$!
  [ -z "$first_signal" ] || kill -s "$first_signal" "$training" 2>/dev/null || true
  # A trap interrupts `wait`, which then has to be called again.
  while
    has_signal=
    code=0
    wait "$training" || code=$?
    [ -n "$has_signal" ]
  do :; done

  # 75: stopped and saved before the end. TERM comes from scancel, after which the job must
  # not start again, or from a preemption, after which Slurm requeues the job itself.
  if [ "$code" = 75 ] && [ "$first_signal" != TERM ]; then
    scontrol requeue "$SLURM_JOB_ID" ||
      echo "$0: the job can't be requeued: submit the same file with sbatch." >&2
  fi
  exit "$code"
}

# shellcheck disable=SC2317 # The traps call it.
pass_on() {
  first_signal=${first_signal:-$1}
  has_signal=1
  [ -z "$training" ] || kill -s "$1" "$training" 2>/dev/null || true
}
