"""Record files as the TPU scripts write them, with images of one color."""

import io

from PIL import Image

from data_prep.records import manifest, tf_example, tfrecord

SYNSETS = ("n01440764", "n01443537", "n01484850")


def encoded_image(index, image_format="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (8, 4 + index), (index, 0, 0)).save(file, image_format)
    return file.getvalue()


def record(index, label, **changes):
    """Returns a framed record as the TPU scripts write it."""
    features = {
        "image/encoded": encoded_image(index),
        "image/class/label": label,
        "image/class/synset": SYNSETS[(label - 1) % 3].encode(),
        "image/filename": f"{index}.JPEG".encode(),
        "image/format": b"JPEG",
        "image/height": 4 + index,
    }
    kept = {k: v for k, v in (features | changes).items() if v is not None}
    return tfrecord.frame_record(tf_example.encode_example(kept))


def write_shards(folder, split, shards):
    """Writes record files, each a list of framed records."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, records in enumerate(shards):
        name = manifest.shard_name(split, index, len(shards))
        (folder / name).write_bytes(b"".join(records))
