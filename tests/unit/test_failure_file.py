import pytest

from resnet.watchdog import failure_file


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("rank 1 on a has died while computing step 12: it was killed", 12),
        ("the loss of step 7 is not finite on rank 3", 7),
        ("rank 1 on step9 has died while starting", None),
    ],
)
def test_the_step_is_that_of_the_sentence(tmp_path, reason, step):
    failure_file.write(tmp_path, reason)
    found = failure_file.read(tmp_path)
    assert (found["step"], found["reason"]) == (step, reason)
    failure_file.remove(tmp_path)
    assert failure_file.read(tmp_path) is None
    failure_file.remove(tmp_path)


def test_half_a_file_is_none(tmp_path):
    (tmp_path / failure_file.FILE).write_text('{"step": 1')
    assert failure_file.read(tmp_path) is None


def test_a_folder_that_takes_no_file_changes_nothing(tmp_path):
    (tmp_path / "file").touch()
    failure_file.write(tmp_path / "file" / "run", "a reason")


def test_a_run_that_fails_before_it_has_a_folder_says_why_too(tmp_path):
    failure_file.write(tmp_path / "new" / "run", "a reason")
    assert failure_file.read(tmp_path / "new" / "run")["reason"] == "a reason"


@pytest.mark.parametrize("is_locked", [True, False])
def test_it_says_whether_the_folder_was_locked(tmp_path, is_locked):
    failure_file.write(tmp_path, "a reason", is_locked)
    assert failure_file.read(tmp_path)["locked"] is is_locked
