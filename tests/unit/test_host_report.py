"""What a host says of itself."""

import platform
import shutil

import pytest

from launch.checking import host_report
from resnet.base.errors import UserError
from tests.unit import machine_trees, stored_reports

STAT = "cpu  9 9 9 9\ncpu0 {0} 0 {0} {1} {1} 0 0 0 0 0\ncpu1 0 0 0 900 0 0 0 {2} 0 0\n"


def gather(root, monkeypatch, later: str = "", data_dir="", stage_from=""):
    """Returns the report of a machine whose /proc/stat changes meanwhile."""

    def wait(seconds: float) -> None:
        if later:
            (root / "proc/stat").write_text(later)

    monkeypatch.setattr(host_report.time, "sleep", wait)
    return host_report.gather(str(data_dir), str(stage_from or data_dir), root)


def test_a_report_survives_json(tmp_path, monkeypatch):
    root = machine_trees.two_sockets(tmp_path)
    report = gather(root, monkeypatch)
    text = host_report.to_json(report)
    assert host_report.from_json(f"Welcome\n{text}\n", "a") == report
    assert report.topology.cpu_model == "Test CPU"
    assert len(report.topology.cores) == 48
    assert "version of numpy" in report.versions
    assert report.scratch_bytes > 0
    assert host_report.from_json(
        host_report.to_json(stored_reports.host()), "a"
    ) == stored_reports.host(node={"source": "as stated"})


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"topology": {}}'])
def test_an_answer_that_is_no_report_is_refused(text):
    with pytest.raises(UserError, match=r"a must answer with a report|a's topology"):
        host_report.from_json(text, "a")


def test_processors_that_are_busy_or_stolen_are_named(tmp_path, monkeypatch):
    root = machine_trees.write(tmp_path, [(0, 0, 0), (0, 0, 1)], memory_kib=1000)
    for busy, idle, stolen, expected in (
        (40, 30, 0, (0,)),  # 80 ticks of work, 60 of idleness and waiting.
        (20, 30, 0, ()),
        (0, 50, 50, (1,)),  # A virtual machine that has to wait for its host.
    ):
        (root / "proc/stat").write_text(STAT.format(0, 0, 0))
        later = STAT.format(busy, idle, stolen)
        assert gather(root, monkeypatch, later).busy_cpus == expected


def test_free_memory_is_what_programs_can_have(tmp_path, monkeypatch):
    root = machine_trees.write(tmp_path, [(0, 0, 0)], memory_kib=8_000_000)
    with (root / "proc/meminfo").open("a") as file:
        file.write("MemAvailable:    3000000 kB\n")
    assert gather(root, monkeypatch).free_memory_bytes == 3_000_000 * 1024
    limit = root / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text("1000000\n")
    assert gather(root, monkeypatch).free_memory_bytes == 1_000_000


def test_the_manifest_is_compared_without_where_it_came_from(
    records, tmp_path, monkeypatch
):
    root = machine_trees.single_core(tmp_path)
    report = gather(root, monkeypatch, data_dir=records)
    assert len(report.data) == 64
    sizes = [path.stat().st_size for path in records.glob("*/*-of-*")]
    assert report.records_bytes == sum(sizes)
    other = tmp_path / "other"
    other.mkdir()
    text = (records / "manifest.json").read_text()
    assert '"source": {' in text
    (other / "manifest.json").write_text(
        text.replace('"source": {', '"source": {"of": "another folder", ')
    )
    assert gather(root, monkeypatch, data_dir=other).data == report.data


def test_records_that_are_staged_already_are_counted(records, tmp_path, monkeypatch):
    root = machine_trees.single_core(tmp_path / "root")
    local = tmp_path / "local"
    shard = next(iter(sorted(records.glob("*/*-of-*"))))
    copy = local / shard.relative_to(records)
    folders = {"data_dir": local, "stage_from": records}
    assert gather(root, monkeypatch, **folders).staged_bytes == 0
    copy.parent.mkdir(parents=True)
    shutil.copy(shard, copy)
    assert gather(root, monkeypatch, **folders).staged_bytes == shard.stat().st_size
    copy.write_bytes(copy.read_bytes()[:-1])
    assert gather(root, monkeypatch, **folders).staged_bytes == 0


def test_a_machine_is_known_by_the_random_number_of_its_boot(tmp_path, monkeypatch):
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    root = machine_trees.write(tmp_path, [(0, 0, 0)], files={file.name: ""})
    assert gather(root, monkeypatch).boot_id == platform.node()
    file.parent.mkdir(parents=True)
    file.write_text("bc49\n")
    assert gather(root, monkeypatch).boot_id == "bc49"


def test_a_data_set_that_is_not_there_is_said(tmp_path, monkeypatch):
    root = machine_trees.single_core(tmp_path)
    report = gather(root, monkeypatch, data_dir=tmp_path / "none")
    assert report.data == ""
    assert "is not a folder" in report.data_problem
    assert report.data_bytes > 0  # Of the disk that it would be on.
    (tmp_path / "none").mkdir()
    report = gather(root, monkeypatch, data_dir=tmp_path / "none")
    assert report.data_problem == f"{tmp_path}/none has no manifest"
