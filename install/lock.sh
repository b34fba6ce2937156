#!/usr/bin/env bash
# Sourced by the scripts of this folder: keeps two of them from changing the same files.

# take_lock FILE: waits for the lock of this file and holds it until this shell ends. Fails
# where files can't be locked: on some network file systems, or in a folder that can't be
# written.
take_lock() {
  local descriptor
  { exec {descriptor}>>"$1"; } 2>/dev/null || return 1
  flock --nonblock --conflict-exit-code 99 "$descriptor" 2>/dev/null && return
  [ $? = 99 ] || return 1
  echo "another set-up holds $1; waiting until it ends" >&2
  flock "$descriptor" 2>/dev/null
}

note_no_lock() {
  echo "note: $1 can't be locked here. Let no second set-up run at the same time." >&2
}
