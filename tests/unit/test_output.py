"""What can't be printed is dropped, and nothing else depends on it."""

import errno
import fcntl
import io
import os
import pty
import subprocess
import sys

import pytest

from resnet.base import output
from resnet.base.errors import UserError
from tests.sources import ROOT
from tests.unit.failing_calls import failing


def without_reader(reader: int, writer: int) -> int:
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    "open_broken",
    [
        lambda: os.open("/dev/full", os.O_WRONLY),
        lambda: without_reader(*os.pipe()),
        lambda: without_reader(*pty.openpty()),
        lambda: os.open(os.devnull, os.O_RDONLY),
    ],
    ids=["full disk", "closed pipe", "lost terminal", "not for writing"],
)
def test_a_stream_that_cannot_be_written_raises_nothing(open_broken):
    descriptor = open_broken()
    with pytest.raises(OSError, match=r"\[Errno"):
        os.write(descriptor, b"text\n")
    stream = output.stream(descriptor, None)
    for text in ("a line\n", "long " * 10_000, "without an end"):
        print(text, end="", file=stream)
        stream.flush()
    os.close(descriptor)  # By somebody else.
    print("more", file=stream)
    stream.close()


def test_a_log_that_nobody_reads_is_dropped_until_somebody_does(monkeypatch):
    monkeypatch.setattr(output, "_READER_SECONDS", 0.01)
    reader, writer = os.pipe()
    num_bytes = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 16)
    for _ in range(2):
        output.write(writer, num_bytes * b"x" + b" cut\n", is_patient=False)
    assert os.read(reader, 2 * num_bytes) == num_bytes * b"x"
    output.write(writer, b"step 2\n", is_patient=False)
    assert os.read(reader, 100) == b"\nstep 2\n"
    os.close(reader)
    os.close(writer)


def test_text_is_printed_again_when_there_is_room_on_a_line_of_its_own(monkeypatch):
    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = data[: room[0]]
        room[0] -= len(written)
        disk.extend(written)
        return len(written)

    disk, room = bytearray(), [4]
    monkeypatch.setattr(output.os, "write", write)
    for text, more_room in ((b"loss 1\n", 0), (b"loss 2\n", 0), (b"loss 3\n", 99)):
        room[0] += more_room
        output.write(2, text)
    output.write(2, b"loss 4\n")
    assert disk == b"loss\nloss 3\nloss 4\n"


def test_a_stream_has_the_settings_of_another_and_escapes_what_its_encoding_lacks(
    tmp_path,
):
    with open(tmp_path / "log", "wb") as file:
        like = io.TextIOWrapper(io.BytesIO(), "latin-1", line_buffering=True)
        stream = output.stream(file.fileno(), like)
        print("café \u2026 \udcff", file=stream)
        assert (tmp_path / "log").read_bytes() == b"caf\xe9 \\u2026 \\udcff\n"


CLOSED = """
import os, subprocess, sys
from resnet.base import program
print("nowhere"); print("nowhere", file=sys.stderr); sys.stdin.read()
child = subprocess.run("echo nowhere; echo nowhere >&2; cat", shell=True)
with open(sys.argv[1], "w") as file:
    print(file.fileno(), child.returncode, file=file)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_stream_that_was_closed(tmp_path, closed):
    subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "", sys.executable, "-c", CLOSED, "said"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    number, code = (tmp_path / "said").read_text().split()
    assert (int(number) > 2, code) == (True, "0")


def test_notes_of_an_import_are_left_out_and_warnings_are_not(capfd):
    notes = (
        "WARNING: All log messages before absl::InitializeLog() is called",
        "I0000 00:00:1.2  9 cudart_stub.cc:31] Could not find cuda drivers",
        "E0000 00:00:1.2  9 cuda.cc:1] failed call to cuInit: no device",
    )
    with output.without_startup_notes():
        os.write(2, "\n".join([*notes, "W0000 a warning", ""]).encode())
    assert capfd.readouterr().err == "W0000 a warning\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_a_result_is_not_lost_silently(monkeypatch, number):
    monkeypatch.setattr(sys, "stdout", output.stream(1, None))
    monkeypatch.setattr(output.os, "write", failing(number))
    if number == errno.EPIPE:  # As of `head`, which has read enough.
        output.print_result("a plan")
        return
    with pytest.raises(UserError, match=r"written to standard output: No space left"):
        output.print_result("a plan")
