import pytest

from data_prep.errors import UserError
from launch import mpirun_command

PROGRAM = ("python", "resnet/resnet_main.py", "--model_dir=M", "-np", "7")


def parse(text: str):
    return mpirun_command.parse([*text.split(), *PROGRAM])


def test_what_is_no_mpirun_command_is_none():
    assert mpirun_command.parse(PROGRAM) is None
    assert mpirun_command.parse([]) is None


@pytest.mark.parametrize("name", ["-hosts", "--hosts", "-host"])
def test_hosts_and_ranks_are_read_and_the_program_left_alone(name):
    command = parse(f"/opt/bin/mpirun -l {name} a,b -genv X 1 -launcher ssh -np 4")
    assert command.launcher == "/opt/bin/mpirun"
    assert command.hosts == ("a", "b")
    assert command.num_ranks == 4
    assert command.options == ("-l", "-genv", "X", "1", "-launcher", "ssh")
    assert command.program == PROGRAM


def test_hosts_of_a_file_are_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a:2  # fast\n\n# none\nb:1\n")
    command = parse(f"mpiexec -f {file} -n 3")
    assert command.hosts == ("a:2", "b:1")
    assert [command.ranks_of(host) for host in command.hosts] == [2, 1]


@pytest.mark.parametrize(
    ("text", "gone", "words"),
    [
        ("mpirun -hosts a,b,c -np 6", "b", "-hosts a,c -np 4"),
        ("mpirun -hosts a,b -ppn 2 -np 4", "a", "-hosts b -ppn 2 -np 2"),
        ("mpirun -hosts a:3,b:1 -np 4", "b:1", "-hosts a:3 -np 3"),
    ],
)
def test_a_host_that_is_gone_takes_its_ranks_with_it(text, gone, words):
    left = parse(text).without([gone])
    assert left.words() == ["mpirun", *words.split(), *PROGRAM]


@pytest.mark.parametrize("value", ["0", "two", "-1"])
def test_a_number_of_ranks_that_is_none_is_refused(value):
    with pytest.raises(UserError, match="-np of mpirun must be a number from 1"):
        parse(f"mpirun -np {value}")


def test_a_host_file_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="host file of mpirun must be readable"):
        parse("mpirun -f /nowhere -np 2")


def test_hosts_that_run_nothing_are_gone(tmp_path):
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        '#!/bin/sh\nfor host; do [ "$host" = b ] && exit 1; done; exit 0\n'
    )
    launcher.chmod(0o755)
    command = parse(f"{launcher} -hosts a:2,b:2 -np 4")
    assert command.find_gone_hosts() == ["b:2"]
