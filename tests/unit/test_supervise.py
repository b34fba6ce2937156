import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from launch import commands, supervise
from launch.commands import StopRequests
from launch.supervise import SuperviseFlags
from resnet.base.errors import UserError
from resnet.checkpoint import step_dirs
from resnet.config.config import save_config
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import history
from tests.in_process import assert_refused, run
from tests.processes import write_program
from tests.unit.small_checkpoint import save

START = '{"event": "start", "time": 1}'
LOCKED = '{"step": null, "reason": "one job at a time", "locked": true}'
DAMAGED = '{"step": 5000, "reason": "damaged at step 5000", "locked": false}'


@pytest.fixture
def stub(tmp_path):
    """A function that makes a command, of a line of shell for each of its starts.

    The last line is for all further starts. `$failure` is the file to be written.
    """

    def make(*lines: str, name: str = "train"):
        program = tmp_path / name
        cases = [f"{number}) {line};;" for number, line in enumerate(lines[:-1], 1)]
        text = [
            "#!/bin/sh",
            f"cd {tmp_path}; failure=model/{history.FAILURE_FILE}",
            'case "$*" in --version) echo "$VERSION"; exit;;',
            '*" true") for host; do case " $GONE " in *" $host "*)',
            "  exit 1;; esac; done; exit 0;; esac",
            "echo $* >> starts",
            'case "$(wc -l < starts)" in',
            *cases,
            f"*) {lines[-1]};;",
            "esac",
            "",
        ]
        write_program(program, "\n".join(text))
        return str(program)

    return make


@pytest.fixture
def model_dir(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    return path


@pytest.fixture
def supervised(stub, model_dir, make_config, tmp_path, monkeypatch):
    """A function that supervises a stub without pauses: its exit code and starts.

    `settings` are those that the run has saved, if any, and `gone` the lost hosts.
    """

    def run_it(*lines: str, words: str = "", gone: str = "", settings=None):
        if settings is not None:
            config = make_config(**settings)
            save_config(dataclasses.replace(config, model_dir=str(model_dir)))
        monkeypatch.setenv("GONE", gone)
        command = [stub(*lines, name="mpirun"), *words.split()]
        limits = SuperviseFlags(3, 0.0)
        code = supervise.supervise(command, model_dir, StopRequests(), limits, 0.0)
        return code, starts(tmp_path)

    return run_it


def starts(tmp_path) -> list[str]:
    return (tmp_path / "starts").read_text().splitlines()


@pytest.mark.parametrize(
    ("lines", "changes", "saved"),
    [
        (("exit 9", "exit 0"), {}, 7),
        (("exit 0",), {"stop_after_steps": 2}, 2),  # A trial.
    ],
)
def test_a_run_whose_last_step_is_saved_is_done(
    supervised, model_dir, lines, changes, saved
):
    step_dirs.of_step(model_dir, saved).mkdir(parents=True)
    code, made = supervised(*lines, settings={"train_steps": 7, **changes})
    assert (code, len(made)) == (0, len(lines))


# The run before wanted less than 0.875.
@pytest.mark.parametrize(("wanted", "expected"), [(0.5, (0, 1)), (0.875, (1, 2))])
def test_a_run_that_is_good_enough_is_done(supervised, model_dir, wanted, expected):
    settings = {"mode": "train_and_eval", "eval_every": "1steps", "stop_at": wanted}
    save(model_dir, 4, eval={"top1": 0.75}, config={"stop_at": 0.5})
    begin = f"echo '{START}' >> model/{history.FILE}"
    code, made = supervised(f"{begin}; exit 0", settings={"train_steps": 7, **settings})
    assert (code, len(made)) == expected


def test_a_command_without_its_dashes_is_told_from_flags():
    words = "--max_restarts=3 --model_dir=X mpirun -np 2 python resnet/resnet_main.py"
    done = run(supervise, *words.split())
    assert_refused(done, "the command must follow `--`, as in launch/supervise.py")


def test_a_command_that_trains_elsewhere_is_not_started_again(supervised, model_dir):
    step_dirs.of_step(model_dir, 3).mkdir(parents=True)  # Of a run before.
    with pytest.raises(UserError, match=f"{model_dir} has no finished run. Name the"):
        supervised("exit 0", settings={"train_steps": 7})


AS_LOCKED = f"echo '{LOCKED}' > $failure; exit 2"


@pytest.mark.parametrize(
    ("lines", "code", "count", "sentence"),
    [
        # A user's mistake after a failure.
        (("exit 9", f"echo '{DAMAGED}' > $failure; exit 2"), 2, 2, "restart 1 of 3"),
        # A folder that is locked after a failure, until it is free.
        (("exit 9", AS_LOCKED, AS_LOCKED, "exit 75"), 75, 4, "restart 3 of 3"),
        # A folder that is locked at the first start is another's.
        ((AS_LOCKED,), 2, 1, ""),
        # Another start, which was refused while the run went on.
        ((f"echo '{LOCKED}' > $failure; exit 9",), 9, 2, "failed there twice"),
        # A lock that stays.
        (("exit 9", AS_LOCKED), 2, 4, "the limit of 3 restarts is reached"),
        # A failure that repeats at its step.
        (
            (f"echo '{DAMAGED}' > $failure; exit 1",),
            *(1, 2, "failed at step 5000 (exit code 1)"),
        ),
    ],
)
def test_a_job_is_started_again_only_where_that_helps(
    supervised, capfd, lines, code, count, sentence
):
    found, made = supervised(*lines)
    assert (found, len(made)) == (code, count)
    error = capfd.readouterr().err
    assert sentence in error
    assert error.count(": restart ") == count - 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_in_a_pause_ends_it_with_75_and_a_sentence(
    stub, model_dir, monkeypatch, number
):
    def send_signal(seconds: float) -> None:
        handler = getattr(signal.getsignal(number), "__self__", None)
        assert isinstance(handler, StopRequests)
        signal.raise_signal(number)

    monkeypatch.setattr(commands.time, "sleep", send_signal)
    words = (stub("exit 9"), f"--model_dir={model_dir}")
    done = run(supervise, "--restart_seconds=600", "--", *words)
    assert done.returncode == REQUEUE_EXIT_CODE
    failed, stopped = done.stderr.splitlines()
    assert "has failed at startup or a step before a save (exit code 9)" in failed
    assert "stopped before the next restart" in stopped


@pytest.fixture
def supervisor(stub, model_dir):
    """A supervisor whose command ends with 75 at a signal, and creates `stopped`."""
    trap = "trap 'kill $sleep; : > stopped; exit 75' TERM USR1"
    wait = "sleep 60 & sleep=$!; echo up >&2; wait"
    words = [sys.executable, supervise.__file__, "--", stub(f"{trap}; {wait}")]
    with subprocess.Popen(
        [*words, f"--model_dir={model_dir}"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "up\n"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_command_runs_is_passed_on(supervisor, number):
    supervisor.send_signal(number)
    assert supervisor.wait(60) == REQUEUE_EXIT_CODE


def test_a_killed_supervisor_stops_its_command(supervisor, tmp_path):
    supervisor.kill()
    deadline = time.monotonic() + 20
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_at_the_end_does_not_change_the_exit_code(stub, model_dir):
    program = (
        "import os\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()):\n"
        f"        kill(pid, {int(signal.SIGUSR1)})\n"
        "late = Late()\n"
        "from launch import supervise\n"
        "import sys\n"
        "sys.exit(supervise.main(sys.argv))\n"
    )
    words = ["--", stub("exit 75"), f"--model_dir={model_dir}"]
    done = subprocess.run([sys.executable, "-c", program, *words], check=False)
    assert done.returncode == REQUEUE_EXIT_CODE


ASYNC = {"sync_mode": "async", "num_ps": 1, "global_batch_size": 12}


@pytest.mark.parametrize(
    ("words", "gone", "settings", "again"),
    [
        # Without settings, as of a run that failed before it saved them.
        ("-hosts a,b,c -np 6 x", "b", None, "-hosts a,c -np 4 x"),
        # Of 5 ranks one coordinates and one serves: 3 workers share 12, 5 couldn't.
        ("-hosts a:5,b:1 -np 6 x", "b", ASYNC, "-hosts a:5 -np 5 x"),
    ],
)
def test_a_host_that_is_gone_is_left_out(supervised, words, gone, settings, again):
    outcome = supervised("exit 9", "exit 75", words=words, gone=gone, settings=settings)
    assert outcome == (75, [words, again])


def test_hosts_with_a_core_that_computes_wrongly_are_left_out(supervised):
    """Each such failure is another one, wherever the run has come."""
    a, b = (f'echo \'{{"hosts": ["{host}"]}}\' > $failure; exit 1' for host in "ab")
    outcome = supervised(a, b, "exit 75", words="-hosts a,b,c,d -np 8 x", gone="d")
    again = ["-hosts b,c -np 4 x", "-hosts c -np 2 x"]
    assert outcome == (75, ["-hosts a,b,c,d -np 8 x", *again])


def test_a_host_whose_gradients_were_wrong_is_left_out(supervised):
    stop = 'echo \'{"hosts": ["b"]}\' > $failure; exit 75'
    outcome = supervised(stop, "exit 75", words="-hosts a,b -np 2 x")
    assert outcome == (75, ["-hosts a,b -np 2 x", "-hosts a -np 1 x"])


@pytest.mark.parametrize(
    ("part", "batch", "is_left_out"),
    [
        (0.6, 12, True),
        (0.7, 12, False),  # Six ranks at 0.7 are faster than four.
        (0.6, 18, False),  # Which four ranks can't share.
    ],
)
def test_a_slow_host_is_left_out_where_the_others_are_faster(
    supervised, tmp_path, part, batch, is_left_out
):
    event = json.dumps({"event": "slow", "time": 1.0, "host": "b", "part": part})
    slow = f"echo '{event}' >> model/history.jsonl; exit 9"
    before, after = "-hosts a,b,c -np 6 x", "-hosts a,c -np 4 x"
    settings = {"global_batch_size": batch, "num_train_examples": 1000}
    outcome = supervised(slow, "exit 75", words=before, settings=settings)
    assert outcome == (75, [before, after if is_left_out else before])


def test_a_command_of_open_mpi_is_started_as_it_is(supervised, monkeypatch):
    monkeypatch.setenv("VERSION", "mpirun (Open MPI) 4.1.4")
    words = "--host a,b -np 4 x"
    assert supervised("exit 9", "exit 75", words=words, gone="a b") == (75, 2 * [words])


@pytest.mark.parametrize(
    ("left", "settings", "reason"),
    [
        (0, {}, "no host is left to train on"),
        (5, {}, "5 ranks that are left .* train_batch_size=12, 5 ranks"),
        (2, {"accumulation_steps": 4}, "--accumulation_steps=4; got"),
        (7, ASYNC, "7 ranks that are left .* train_batch_size=12, 5 workers"),
        (2, ASYNC, "at least one that works; got num_ranks=2"),
    ],
)
def test_ranks_that_cannot_share_the_batch_are_not_started_again(
    supervised, tmp_path, left, settings, reason
):
    words = f"-hosts a:{left or 1},b:1 -np {left + 1} x"
    with pytest.raises(UserError, match=reason):
        supervised(
            "exit 9",
            words=words,
            gone="b" if left else "a b",
            settings={"global_batch_size": 12, **settings},
        )
    assert starts(tmp_path) == [words]


def test_there_is_one_folder_that_of_the_command_or_before_it():
    for words in (("-model_dir", "M"), ("x", "--model_dir=M", "-y")):
        for before in ("", "M"):
            assert supervise.model_dir_of(words, before) == "M"
        with pytest.raises(UserError, match="name two folders"):
            supervise.model_dir_of(words, "N")
    for words, before in (((), "M"), (("run.sh",), "")):
        with pytest.raises(UserError, match="expected a command"):
            supervise.model_dir_of(words, before)
