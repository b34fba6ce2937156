import platform

import pytest

from resnet.runtime import versions


@pytest.fixture
def tree(tmp_path):
    for folder in ("resnet", "data_prep"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "code.py").write_text("pass\n")
    (tmp_path / "resnet" / "op.cc").write_text("int x;\n")
    return tmp_path


def test_versions_are_those_that_are_installed():
    found = versions.describe()
    assert found["version of Python"] == platform.python_version()
    assert found["version of tensorflow"].startswith("2.")
    assert set(found) >= {f"version of {name}" for name in versions.PACKAGES}


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "resnet" / "op.cc").write_text("int y;\n"),
        lambda tree: (tree / "data_prep" / "deep" / "code.py").write_text("pass \n"),
        lambda tree: (tree / "resnet" / "new.py").write_text(""),
        lambda tree: (tree / "resnet" / "op.cc").rename(tree / "resnet" / "po.cc"),
    ],
)
def test_every_change_of_the_code_changes_its_digest(tree, change):
    before = versions.code_digest(tree)
    change(tree)
    assert versions.code_digest(tree) != before


def test_what_is_no_code_does_not_matter(tree):
    before = versions.code_digest(tree)
    (tree / "resnet" / "code.pyc").write_bytes(b"")
    (tree / "notes.py").write_text("")
    assert versions.code_digest(tree) == before
