import errno
import os

import pytest
from absl import flags

from data_prep import errors


def fail(error: BaseException) -> None:
    with errors.naming_failures("reading x"):
        raise error


def test_arguments_may_stand_among_the_flags(monkeypatch):
    own = flags.FlagValues()
    flags.DEFINE_integer("size", 1, "A size.", flag_values=own)
    monkeypatch.setattr(flags, "FLAGS", own)
    given = ["program", "a", "--size=2", "-", "--", "--b"]
    assert errors.parse_arguments(given, None) == ["a", "-", "--b"]
    assert own.size == 2
    with pytest.raises(errors.UserError, match=r"only flags .*; got 'a'\. --help"):
        errors.parse_flags(given, None)


def test_a_failure_of_the_system_is_a_sentence():
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a/b")
    with pytest.raises(errors.UserError, match=r"^reading x failed: .*file.*'a/b'$"):
        fail(missing)
    with pytest.raises(
        errors.UserError, match=r"^reading x failed for lack of memory$"
    ):
        fail(MemoryError())


def test_other_errors_stay_as_they_are():
    for error in (errors.UserError("why"), KeyError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error
