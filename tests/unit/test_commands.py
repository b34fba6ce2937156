"""The output of commands, with rank and host in front of each line."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.commands import Labels, StopRequests
from launch.dialects import DIALECTS

HYDRA, SLURM = DIALECTS["mpich"].label, DIALECTS["slurm"].label
HOSTS = {0: "a", 1: "b"}


def hydra(rank: int, host: str, text: str) -> str:
    """Returns a piece of output as MPICH's Hydra labels it."""
    return f"\x1e{rank} {host}\x1f{text}"


def translated(pattern: str, *pieces: str) -> str:
    stream = Labels(pattern, HOSTS)
    out = b"".join(stream.translate(piece.encode()) for piece in pieces)
    return (out + stream.rest()).decode()


@pytest.mark.parametrize("name", DIALECTS)
def test_each_launchers_label_becomes_rank_and_host(name):
    dialect = DIALECTS[name]
    others = {"intelmpi": "[1] ", "openmpi": "[1,1]<stdout>:", "slurm": "  1: "}
    text = others.get(name, hydra(1, "b", "")) + "loss 2.3\n"
    assert translated(dialect.label, text) == "[1 b] loss 2.3\n"
    assert translated(dialect.label, "no label: 1\n") == "no label: 1\n"
    assert dialect.label_options


def test_pieces_of_several_ranks_are_joined():
    pieces = [hydra(0, "a", "one "), hydra(1, "b", "two\n"), hydra(0, "a", "more\n")]
    expected = "[1 b] two\n[0 a] one more\n"
    assert translated(HYDRA, "".join(pieces)) == expected
    assert translated(HYDRA, *pieces) == expected


def test_the_last_line_needs_no_end():
    text = hydra(0, "a", "one ") + hydra(1, "b", "two")
    assert translated(HYDRA, text) == "[1 b] two\n[0 a] one \n"
    assert translated(HYDRA, "killed") == "killed\n"


@given(st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(data):
    texts = st.text("xy \n", min_size=1, max_size=5)
    pieces = data.draw(st.lists(st.tuples(st.integers(0, 2), texts), max_size=8))
    stream = b"".join(hydra(rank, "h", text).encode() for rank, text in pieces)
    cut = data.draw(st.integers(0, len(stream)))
    one, two = Labels(HYDRA, {}), Labels(HYDRA, {})
    whole = one.translate(stream) + one.rest()
    parts = two.translate(stream[:cut]) + two.translate(stream[cut:]) + two.rest()
    assert whole == parts


def test_a_single_rank_needs_no_label_of_a_launcher():
    text = "one\nsupervise: restart 1 of 3\n"
    assert translated("", text) == "[0 a] one\nsupervise: restart 1 of 3\n"


def test_after_a_restart_only_the_launcher_knows_the_hosts():
    text = "0: one\nsupervise: restart 1 of 3\n0: two\n"
    expected = "[0 a] one\nsupervise: restart 1 of 3\n[0] two\n"
    assert translated(SLURM, text) == expected


def test_both_streams_of_a_job_get_labels_and_its_exit_code_is_returned(capfd):
    code = "import sys; print('0: out'); print('1: err', file=sys.stderr); sys.exit(75)"
    words = [sys.executable, "-c", code]
    assert StopRequests().run_labelled(words, SLURM, HOSTS) == 75
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("[0 a] out\n", "[1 b] err\n")
