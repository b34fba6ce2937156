"""What a run notes of its start: command, commit and packages."""

import shlex
import sys

from resnet.metrics import provenance
from tests.processes import completed


def git(folder, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    command = ["git", "-C", str(folder), *who, *words]
    return completed(command, check=True).stdout


def test_the_commit_of_a_clone_says_whether_files_differ_from_it(tmp_path, monkeypatch):
    assert provenance.describe(tmp_path)["git"] is None  # No clone, as in a wheel.
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=m")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert provenance.describe(tmp_path)["git"] == commit
    (tmp_path / "file").write_text("b")
    assert provenance.describe(tmp_path)["git"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert provenance.describe(tmp_path)["git"] is None


def test_the_command_can_be_typed_again(monkeypatch, tmp_path):
    argv = ["resnet-train", "--model_dir=a b", "--note=it's $HOME"]
    monkeypatch.setattr(sys, "argv", argv)
    assert shlex.split(provenance.describe(tmp_path)["command"]) == argv


def test_of_a_package_in_several_folders_the_first_is_named(tmp_path, monkeypatch):
    for folder, version in (("first", "2"), ("second", "1")):
        metadata = tmp_path / folder / f"my_package-{version}.dist-info"
        metadata.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: my-package\nVersion: {version}\n"
        (metadata / "METADATA").write_text(text)
        (tmp_path / folder / "empty-1.dist-info").mkdir()  # As pip may leave it.
    paths = [str(tmp_path / folder) for folder in ("first", "second")]
    monkeypatch.setattr(sys, "path", paths)
    assert provenance.describe(tmp_path)["packages"] == {"my-package": "2"}
