"""A small manifest for tests; its shards needn't exist."""

from data_prep.records import manifest


def example_manifest() -> manifest.Manifest:
    train = manifest.Split(
        name="train",
        shards=(
            manifest.Shard("train/train-00000-of-00002", 2, 20, "a" * 64, 0.5),
            manifest.Shard("train/train-00001-of-00002", 1, 10, None, 0.0),
        ),
        label_counts=(1, 2),
        offsets_path="train-offsets.npy",
        offsets_sha256="c" * 64,
        skipped_images=(manifest.SkippedImage("cat/1.jpg", "it is empty"),),
    )
    return manifest.Manifest(
        class_names=("cat", "dog"),
        first_label=1,
        splits={"train": train},
        source={"shuffle_seed": 0},
        class_descriptions=("house cat", "domestic dog"),
    )
