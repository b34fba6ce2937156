import resource

import pytest

from resnet import program


@pytest.fixture
def limit():
    """The limit of open files, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_thousand_record_files_may_stay_open(limit):
    _, hard = limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    program.allow_open_files()
    soft, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == (
        program.OPEN_FILES
        if hard == resource.RLIM_INFINITY
        else min(hard, program.OPEN_FILES)
    )
    assert unchanged == hard


def test_a_higher_limit_stays(limit):
    program.allow_open_files()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    program.allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
