"""The lines of hosts files, as launchers write and read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.dialects import DIALECTS
from launch.hosts import Host, parse_line, read_file
from resnet.base.errors import UserError

NAMES = st.text("az09.-", max_size=9).map("n{}".format)
COMMENTS = st.sampled_from(["", "  ", "\t# fast", " # a:4 slots=2"])


@settings(max_examples=50)
@given(
    hosts=st.lists(st.builds(Host, NAMES, st.integers(0, 99)), min_size=1, max_size=4),
    launcher=st.sampled_from(sorted(DIALECTS)),
    comment=COMMENTS,
)
def test_what_is_written_for_a_launcher_is_read_as_the_same_hosts(
    tmp_path_factory, hosts, launcher, comment
):
    file = tmp_path_factory.getbasetemp() / "hosts"
    lines = ["# all", "", *(host.line(DIALECTS[launcher]) for host in hosts)]
    file.write_text("\n".join(lines))
    assert read_file(str(file), DIALECTS[launcher]) == hosts
    # For itself, the planner reads all forms, and comments.
    assert [
        parse_line(host.line(DIALECTS[launcher]) + comment) for host in hosts
    ] == hosts


@pytest.mark.parametrize(
    ("launcher", "line", "sentence"),
    [
        ("mpich", "b slots=4", "MPICH can't read 'b slots=4'; write 'b:4'"),
        ("pbs", "b:4  # fast", "PBS can't read 'b:4  # fast'; write 'b:4'"),
        ("openmpi", "b:4", "Open MPI can't read 'b:4'; write 'b slots=4'"),
        (
            "intelmpi",
            "b slots=4 max_slots=8",
            "told of b here; leave out 'max_slots=8'",
        ),
        ("mpich", "2001:db8::1", "IPv4 address, .*; got '2001:db8::1'"),
        ("openmpi", "[fe80::2]:4", "got '\\[fe80::2\\]:4'. Give a host with an IPv6"),
        ("mpich", "b:0", "got 'b:0'"),
        ("openmpi", "b:2 slots=2", "got 'b:2 slots=2'"),
        ("mpich", "b:4 user=me", None),
        ("openmpi", "b slots=4 max_slots=8  # fast", None),
    ],
)
def test_a_line_that_a_launcher_cannot_read_is_refused(
    tmp_path, launcher, line, sentence
):
    file = tmp_path / "hosts"
    file.write_text(f"a\n{line}\n")
    if sentence is None:
        assert [host.name for host in read_file(str(file), DIALECTS[launcher])] == [
            "a",
            "b",
        ]
        return
    with pytest.raises(UserError, match=f"line 2 of .*hosts: .*{sentence}"):
        read_file(str(file), DIALECTS[launcher])
