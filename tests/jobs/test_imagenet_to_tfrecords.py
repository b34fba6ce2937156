import io
import os
import re
import shlex

from PIL import Image

from data_prep.records import manifest
from resnet.config.config import load_config
from tests.converter_program import (
    CLASSES,
    REPOSITORY,
    content,
    convert,
    encoded_image,
    run,
    write,
)
from tests.in_process import succeeded
from tests.processes import completed
from tests.record_reader import read_examples


def test_a_raw_folder_becomes_records_that_tensorflow_reads(raw, tmp_path):
    records = tmp_path / "records"
    more = ("--train_shards=4", "--num_processes=1")
    done = succeeded(convert(raw, records, *more, cwd=tmp_path))
    assert "train: 18 images, 4 shards\n" in done.stdout
    assert "validation: 4 images, 1 shard\n" in done.stdout
    assert "re-encoded as RGB JPEG: 2 (1 CMYK JPEG, 1 PNG)\n" in done.stdout
    assert "ignored files: 1 (1 .txt)\n" in done.stdout
    assert (
        "resnet/resnet_main.py --recipe=own --precision=auto --eval_every=5epochs"
        f" --data_dir={records} "
        in " ".join(shlex.split(done.stdout.split("next:")[1]))
    )
    assert done.stderr.splitlines()[-1].startswith("100 %: 22 of 22 images")

    loaded = manifest.load(str(records), "train").manifest
    assert loaded.class_names == CLASSES
    assert loaded.source["converted_images"] == {"CMYK JPEG": 1, "PNG": 1}
    examples = read_examples(records, "train")
    assert sorted(e["file"] for e in examples) == [
        f"{name}_{index}.JPEG" for name in CLASSES for index in range(6)
    ]
    for example in examples:
        assert example["class"] == example["file"][:3]
        assert example["label"] == 1 + CLASSES.index(example["class"])
        source = (raw / "train" / example["class"] / example["file"]).read_bytes()
        is_converted = example["file"] in ("n01_0.JPEG", "n02_3.JPEG")
        assert (example["encoded"] != source) == is_converted
        decoded = Image.open(io.BytesIO(example["encoded"]))
        assert (decoded.format, decoded.mode) == ("JPEG", "RGB")
        assert decoded.size == example["size"]

    labels = {e["file"]: e["label"] for e in read_examples(records, "validation")}
    assert labels == {"v0.JPEG": 3, "v1.JPEG": 1, "v2.JPEG": 3, "v3.JPEG": 2}


def test_the_command_that_is_suggested_trains_ten_grey_images(tmp_path):
    for index in range(10):
        name = f"my images/train/{'cat' if index % 2 else 'dog'}/{index}.png"
        write(tmp_path / name, encoded_image(index, "PNG", "L"))
    raw, records = tmp_path / "my images", tmp_path / "my records"
    done = succeeded(convert(raw, records, "--num_processes=1", cwd=tmp_path))
    (command,) = re.findall(r"^next: +(.*)$", done.stdout, re.M)
    words = [*shlex.split(command), "--stop_after_steps=1"]
    succeeded(completed(words, cwd=tmp_path))
    assert load_config(f"{records}-model").recipe == "own"


def test_the_number_of_processes_and_the_way_to_start_change_no_byte(raw, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    more = ("--train_shards=5", "--validation_shards=2")
    assert convert(raw, one, *more, "--num_processes=1").returncode == 0
    module = ("-m", "data_prep.imagenet_to_tfrecords")
    options = {"program": module, "cwd": REPOSITORY}
    assert convert(raw, two, *more, "--num_processes=2", **options).returncode == 0
    assert len(content(one)) == 5 + 2 + 2 + 1
    assert content(one) == content(two)

    verified = run("--verify", f"--local_scratch_dir={two}", "--num_processes=2")
    assert verified.returncode == 0, verified.stderr
    assert verified.stdout.startswith("verification passed: 22 records, ")


def test_a_folder_whose_name_is_not_utf8_is_named_in_what_is_printed(raw, tmp_path):
    records = tmp_path / os.fsdecode(b"records\xff")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8"}  # As in most locales.
    converted = succeeded(convert(raw, records, env=strict))
    assert f"records: {tmp_path}/records\\udcff\n" in converted.stdout
    flags = ("--verify", f"--local_scratch_dir={records}")
    for code in (0, 1):
        verified = run(*flags, env=strict)
        assert verified.returncode == code, verified.stderr
        assert f"{tmp_path}/records\\udcff" in verified.stdout.splitlines()[-1]
        (records / "validation" / "validation-00000-of-00001").unlink(missing_ok=True)
