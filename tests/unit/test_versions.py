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


def test_every_change_of_the_code_changes_its_digest(tree):
    digests = [versions.code_digest(tree)]
    for change in (
        lambda: (tree / "resnet" / "op.cc").write_text("int y;\n"),
        lambda: (tree / "data_prep" / "deep" / "code.py").write_text("pass \n"),
        lambda: (tree / "resnet" / "new.py").write_text(""),
        lambda: (tree / "resnet" / "op.cc").rename(tree / "resnet" / "po.cc"),
    ):
        change()
        digests.append(versions.code_digest(tree))
    assert len(set(digests)) == 5
    (tree / "resnet" / "code.pyc").write_bytes(b"")
    (tree / "notes.py").write_text("")
    assert versions.code_digest(tree) == digests[-1]  # What is no code doesn't matter.
