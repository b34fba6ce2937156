import errno
import os

import pytest

from data_prep import errors


def fail(error: BaseException) -> None:
    with errors.naming_failures("reading x"):
        raise error


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
