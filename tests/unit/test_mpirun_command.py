import pytest

from launch import mpirun_command
from launch.hosts import Host
from resnet.base.errors import UserError
from tests.processes import write_program

PROGRAM = ("python", "resnet/resnet_main.py", "--model_dir=M", "-np", "7")


def parse(text: str):
    return mpirun_command.parse([*text.split(), *PROGRAM])


@pytest.mark.parametrize("name", ["-hosts", "--hosts", "-host"])
def test_hosts_and_ranks_are_read(name):
    assert mpirun_command.parse(PROGRAM) is None
    assert mpirun_command.parse([]) is None
    for text in (f"{name} a,b -genv X 1 -launcher ssh -np 4", f"{name}=a,b -N=4"):
        command = parse(f"/opt/bin/mpirun -l {text}")
        assert command.hosts == (Host("a"), Host("b"))
        assert command.num_ranks == 4
        assert command.words[-len(PROGRAM) :] == PROGRAM


@pytest.mark.parametrize(
    ("text", "gone", "expected"),
    [
        ("mpirun -hosts a,b,c -np 6", "b", "mpirun -hosts a,c -np 4"),
        ("mpirun -hosts a,b -ppn 2 -np 4", "a", "mpirun -hosts b -ppn 2 -np 2"),
        ("mpirun -hosts a:3,b:1 -np 4", "b", "mpirun -hosts a:3 -np 3"),
        (
            "mpirun --hosts=a,b -genv A=B -PPN=2 -n=4",
            "a",
            "mpirun -hosts b -genv A=B -ppn 2 -n 2",
        ),
        ("mpirun -np 2 -hosts a,b,c", "a", "mpirun -np 1 -hosts b,c"),
        ("mpirun --host a,b -n 2 --oversubscribe", "b", None),
        ("mpirun -hosts a,b -np 4 -genvnone", "b", None),
        ("mpirun -l -hosts a,b -np 4 -genv A 1", "b", None),
        ("mpirun -hosts a,b -genv A=B -np 4", "b", None),
    ],
)
def test_a_host_that_is_gone_takes_its_ranks_with_it(text, gone, expected):
    left = parse(text).without([gone])
    if expected is None:  # Nothing else may change.
        halved = {"4": "2", "2": "1"}
        expected = " ".join(halved.get(word, word) for word in text.split())
        expected = expected.replace("a,b", "a")
    assert left.words == (*expected.split(), *PROGRAM)


def test_of_a_file_of_hosts_those_that_are_left_are_named(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a slots=2  # fast\n\n# none\nb:1\n")
    command = parse(f"mpiexec -f {file} -n 3")
    assert command.hosts == (Host("a", 2), Host("b", 1))
    expected = "mpiexec -hosts a:2 -n 2"
    assert command.without(["b"]).words == (*expected.split(), *PROGRAM)
    file.write_text("a:2 user=me\nb:1\n")
    with pytest.raises(UserError, match="leave out 'user=me'"):
        command = parse(f"mpiexec -f {file} -n 3").without(["b"])


def test_all_blocks_are_read_and_their_hosts_stay():
    words = "mpirun -np 1 -host a x -n y : -np=3 -host b,c x : -n 2 z"
    command = mpirun_command.parse(words.split())
    assert [host.name for host in command.hosts] == ["a", "b", "c"]
    assert command.words == tuple(words.replace("=", " ").split())
    with pytest.raises(UserError, match="b can't be left out of a command of several"):
        command.without(["b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-np two", "-np of mpirun must be a whole number"),
        ("-n -1", "-n of mpirun must be a whole number"),
        ("-hosts a,2001:db8::1", "an IPv4 address, .*; got '2001:db8::1'"),
        ("-f /nowhere", "can't be read; /nowhere: No such file or directory"),
    ],
)
def test_other_numbers_and_files_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        assert parse(f"mpirun {text}").hosts


def test_all_hosts_are_asked_at_the_same_time(tmp_path):
    stub = tmp_path / "mpirun"  # It answers only once all five have been asked.
    all_asked = '[ "$(ls asked.* | wc -l)" = 5 ] && exit 0'
    wait = f"for try in $(seq 100); do {all_asked}; sleep 0.1; done; exit 1"
    write_program(stub, f"#!/bin/sh\ncd {tmp_path}; : > asked.$$\n{wait}\n")
    assert parse(f"{stub} -hosts a,b,c,d,e -np 5").find_unreachable_hosts() == []


def test_a_launcher_that_is_not_there_is_a_sentence(tmp_path):
    command = parse(f"{tmp_path}/mpirun -hosts a -np 1")
    with pytest.raises(UserError, match="mpirun can't be run: No such file"):
        command.find_unreachable_hosts()
