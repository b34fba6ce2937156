"""launch/jobs/stage.sh copies records to the disk of a node."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def records_of_two_files(tmp_path, write_tiny_set) -> Path:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    folder = tmp_path / "shared records"
    folder.mkdir()
    write_tiny_set(folder, [file.getvalue()] * 8, [0, 1] * 4, ("a", "b"), (4, 4))
    return folder


@pytest.mark.parametrize(
    "variable", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
)
def test_staging_copies_the_files_of_a_node(variable, records_of_two_files, tmp_path):
    local = {node: tmp_path / f"local {node}" for node in range(2)}
    for node, folder in local.items():
        stage(records_of_two_files, folder, "2", **{variable: str(node)})
    copied = [
        {path.name for path in folder.rglob("train-0*")} for folder in local.values()
    ]
    assert copied == [{"train-00000-of-00002"}, {"train-00001-of-00002"}]
    for folder in local.values():
        for path in filter(Path.is_file, folder.rglob("[!.]*")):
            original = records_of_two_files / path.relative_to(folder)
            assert path.read_bytes() == original.read_bytes()


def test_a_node_with_another_number_than_before_has_only_its_new_part(
    records_of_two_files, tmp_path
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
        submitter = f"login{parts}{node}"  # Slurm passes on its environment.
        stage(records_of_two_files, local, parts, PMI_RANK=node, HOSTNAME=submitter)
        names = sorted(path.name for path in (local / "train").iterdir())
        assert names == ["own", *expected]


def test_records_that_staging_has_not_copied_are_left_alone(
    records_of_two_files, tmp_path
):
    stage(records_of_two_files, records_of_two_files, "2", PMI_RANK="1")
    stage(records_of_two_files, records_of_two_files, "2", PMI_RANK="0")
    names = {path.name for path in records_of_two_files.rglob("train-0*")}
    assert names == {"train-00000-of-00002", "train-00001-of-00002"}


def test_a_file_that_was_deleted_is_copied_again_and_belongs_to_who_puts_it_there(
    records_of_two_files, tmp_path
):
    local, name = tmp_path / "local", "train/train-00000-of-00002"
    stage(records_of_two_files, local, "2", PMI_RANK="0")
    (local / name).unlink()
    stage(records_of_two_files, local, "2", PMI_RANK="0")
    assert (local / name).exists()
    (copied,) = local.glob(".staged.*")
    listed = copied.read_text().splitlines()
    assert len(set(listed)) == len(listed)

    stage(records_of_two_files, local, "2", PMI_RANK="1")
    assert not (local / name).exists()
    shutil.copy(records_of_two_files / name, local / name)
    stage(records_of_two_files, local, "2", PMI_RANK="1")
    assert (local / name).exists()


def test_staging_copies_all_files_where_the_nodes_share_none(
    records_of_two_files, tmp_path
):
    stage(records_of_two_files, tmp_path / "local", "1")
    names = {path.name for path in (tmp_path / "local").rglob("train-0*")}
    assert names == {"train-00000-of-00002", "train-00001-of-00002"}


def test_staging_of_parts_needs_the_number_of_the_node(records_of_two_files, tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        stage(records_of_two_files, tmp_path / "local", "2")
    assert caught.value.returncode == 2
    assert "expected to be started by mpirun or srun" in caught.value.stderr


def stage(shared: Path, local: Path, parts: str, **variables: str) -> None:
    python = str(Path(sys.executable).parent)
    subprocess.run(
        [str(ROOT / "launch/jobs/stage.sh"), str(shared), str(local), parts],
        env={"PATH": f"{python}:{os.defpath}", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
