from data_prep.records import manifest, verification
from tests.converter_program import content, convert_here, run_here, write
from tests.in_process import Done, assert_refused


def verify(records, *more: str) -> Done:
    return run_here("--verify", f"--local_scratch_dir={records}", *more)


def test_verify_reads_the_whole_set_again(raw, tmp_path):
    records = tmp_path / "records"
    assert_refused(verify(tmp_path), "requires a finished record set")
    assert_refused(verify(records), "is not a folder")
    assert convert_here(raw, records, "--train_shards=3").returncode == 0
    assert_refused(verify(records, f"--raw_data_dir={raw}"), "Remove that flag.")
    before = content(records)
    done = verify(records, "--num_processes=2")
    assert done.returncode == 0, done.stderr
    num_bytes = sum(len(d) for name, d in before.items() if "-of-" in name)
    assert (
        f"verification passed: 22 records, {num_bytes:,} bytes in {records}, "
        in done.stdout
    )
    assert done.stdout.endswith(" records per second\n")
    assert done.stderr.splitlines()[-1].startswith("100 %: 22 of 22 records")
    assert content(records) == before


def test_an_unfinished_set_is_not_verified_nor_taken_for_that_of_others(raw, tmp_path):
    records = tmp_path / "records"
    assert convert_here(raw, records).returncode == 0
    (records / "manifest.json").unlink()
    write(records / ".conversion" / "plan.json", b"{}")
    before = content(records)
    assert_refused(verify(records), "is incomplete; rerun")
    assert content(records) == before


def test_verify_lists_each_damaged_record(raw, tmp_path):
    records = tmp_path / "records"
    assert convert_here(raw, records, "--train_shards=3").returncode == 0
    record_set = manifest.load(str(records), "train")
    offsets = manifest.read_offsets(record_set, record_set.manifest.splits["train"])
    path = records / "train" / "train-00000-of-00003"
    data = bytearray(path.read_bytes())
    data[offsets[1] + 30] ^= 1  # Of its content.
    data[offsets[4]] ^= 1  # Of its length.
    path.write_bytes(data)
    (records / "validation" / "validation-00000-of-00001").unlink()
    done = verify(records)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert f"train-00000-of-00003 at byte {offsets[1]}: " in lines[0]
    assert f"train-00000-of-00003 at byte {offsets[4]}: " in lines[1]
    assert "validation-00000-of-00001: " in lines[2]
    assert lines[3] == (
        f"verification failed: 3 corrupt files or records; {records} must hold 22 good"
        " records"
    )


def test_records_that_are_not_listed_are_counted(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "_MAX_PROBLEMS_PER_FILE", 5)
    records = tmp_path / "records"
    assert convert_here(raw, records).returncode == 0
    path = records / "train" / "train-00000-of-00001"
    path.write_bytes(bytes(path.stat().st_size))
    lines = verify(records).stdout.splitlines()
    assert len(lines) == 7
    assert lines[0] == f"{path}: 13 more of its records are corrupt"
    assert "verification failed: 18 corrupt files or records" in lines[6]
