"""launch/jobs/stage.sh copies records to the disk of a node."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import place_shards
from tests.converter_program import encoded_image
from tests.in_process import run
from tests.processes import completed, write_program
from tests.sources import ROOT


@pytest.fixture
def shared(tmp_path, write_tiny_set) -> Path:
    """Records in two files."""
    folder = tmp_path / "shared records"
    folder.mkdir()
    write_tiny_set(folder, [encoded_image(0)] * 8, [0, 1] * 4, ("a", "b"), (4, 4))
    return folder


@pytest.fixture
def quick_python(shared) -> Path:
    """A folder with a `python` that knows what launch/place_shards.py prints."""
    lists = shared.parent / "lists"
    lists.mkdir()
    for parts, node in ((1, 0), (2, 0), (2, 1)):
        flags = f"--num_nodes={parts}", f"--node={node}"
        printed = run(place_shards, f"--data_dir={shared}", *flags).stdout
        (lists / "".join(flags)).write_text(printed)
    write_program((lists / "python"), f'#!/bin/sh\ncat "{lists}/$3$4"\n')
    return lists


def stage(python: Path, shared: Path, local: Path, parts: str, **variables: str):
    completed(
        [str(ROOT / "launch/jobs/stage.sh"), str(shared), str(local), parts],
        env={"PATH": f"{python}:{os.defpath}", **variables},
        check=True,
    )


def test_staging_copies_the_files_of_a_node(quick_python, shared, tmp_path):
    python = Path(sys.executable).parent
    for node, variable in enumerate(["PMI_RANK", "OMPI_COMM_WORLD_RANK"]):
        local = tmp_path / f"local {node}"
        stage(python, shared, local, "2", **{variable: str(node)})
        copied = [path.name for path in local.rglob("train-0*")]
        assert copied == [f"train-0000{node}-of-00002"]
        for path in filter(Path.is_file, local.rglob("[!.]*")):
            original = shared / path.relative_to(local)
            assert path.read_bytes() == original.read_bytes()
    stage(quick_python, shared, tmp_path / "all", "1")
    names = {path.name for path in (tmp_path / "all").rglob("train-0*")}
    assert names == {"train-00000-of-00002", "train-00001-of-00002"}


def test_a_node_with_another_number_than_before_has_only_its_new_part(
    quick_python, shared, tmp_path
):
    local = tmp_path / "local"
    (local / "train").mkdir(parents=True)
    (local / "train/own").touch()
    for parts, node, expected in (
        ("2", "1", ["train-00001-of-00002"]),
        ("2", "0", ["train-00000-of-00002"]),
        ("1", "0", ["train-00000-of-00002", "train-00001-of-00002"]),
        ("2", "1", ["train-00001-of-00002"]),
    ):
        # Slurm passes on the environment of the submission.
        variables = {"SLURM_PROCID": node, "HOSTNAME": f"login{parts}{node}"}
        stage(quick_python, shared, local, parts, **variables)
        names = sorted(path.name for path in (local / "train").iterdir())
        assert names == ["own", *expected]


def test_records_that_staging_has_not_copied_are_left_alone(quick_python, shared):
    for node in ("1", "0"):
        stage(quick_python, shared, shared, "2", PMI_RANK=node)
    names = {path.name for path in shared.rglob("train-0*")}
    assert names == {"train-00000-of-00002", "train-00001-of-00002"}


def test_a_file_that_was_deleted_is_copied_again_and_belongs_to_who_puts_it_there(
    quick_python, shared, tmp_path
):
    local, name = tmp_path / "local", "train/train-00000-of-00002"
    stage(quick_python, shared, local, "2", PMI_RANK="0")
    (local / name).unlink()
    stage(quick_python, shared, local, "2", PMI_RANK="0")
    assert (local / name).exists()
    (copied,) = local.glob(".staged.*")
    listed = copied.read_text().splitlines()
    assert len(set(listed)) == len(listed)

    stage(quick_python, shared, local, "2", PMI_RANK="1")
    assert not (local / name).exists()
    shutil.copy(shared / name, local / name)
    stage(quick_python, shared, local, "2", PMI_RANK="1")
    assert (local / name).exists()


def test_staging_of_parts_needs_the_number_of_the_node(quick_python, shared, tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        stage(quick_python, shared, tmp_path / "local", "2")
    assert caught.value.returncode == 2
    assert "expected to be started by mpirun or srun" in caught.value.stderr
