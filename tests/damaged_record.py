"""A record set with a record that is damaged."""

from pathlib import Path

from data_prep.records import manifest, record_index


def flip_a_bit(data_dir: Path, example: int) -> tuple[Path, int]:
    """Damages the data of a training record; returns its file and offset."""
    record_set = manifest.load(str(data_dir), "train")
    split = record_set.manifest.splits["train"]
    shard = split.shards[int(record_index.shard_of_example(split)[example])]
    offset = int(record_index.read_index(record_set, split)["offset"][example])
    path = data_dir / shard.path
    content = bytearray(path.read_bytes())
    content[offset + 300] ^= 8
    path.write_bytes(content)
    return path, offset
