"""The layouts of record sets that other programs wrote: their files and features.

Two layouts are known: that of tensorflow_datasets, with `dataset_info.json` and
`features.json`, and that of the TPU scripts, with `train-00000-of-01024` and so on in
one folder or in `train/` and `validation/`. tensorflow_datasets isn't imported.
"""

import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.records import manifest, tf_example
from resnet.base import commands, json_file, regular_file
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.base.text import first_of

INFO_FILE = "dataset_info.json"  # In each set that tensorflow_datasets has prepared.
_FEATURES_FILE = "features.json"
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MAX_INFO_BYTES = 2**28  # The largest data sets' files have a few million bytes.
MAX_CLASSES = 1_000_000  # A larger label can't be a class index.
SHARD_NAME = re.compile(r"(train|validation)-(\d{5,})-of-(\d{5,})")  # The TPU scripts'.
_RECORD_FILE = re.compile(r"tfrec|^[\w-]+-\d{5,}-of-\d{5,}")  # Most programs' names.


@dataclasses.dataclass(frozen=True)
class Layout:
    """The files and features of a record set; no record has been read."""

    root: pathlib.Path  # Folder of the set.
    paths: dict[str, list[str]]  # POSIX paths of the files in `root`, by split.
    description: str  # Of the set and the program that wrote it.
    # Expected number of records of each file, by split; empty if unknown.
    num_records: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    image_key: str = tf_example.ENCODED  # The feature with the encoded image.
    label_key: str = tf_example.LABEL
    name_key: str | None = tf_example.SYNSET  # The class name; None if there is none.
    class_names: tuple[str, ...] | None = None  # By labels from 0; None if unknown.
    # The flags that name its images to the converter.
    conversion: tuple[str, ...] = ("--raw_data_dir=RAW",)


def find(root: pathlib.Path, label: str | None = None) -> Layout | None:
    """Returns the layout of the record set in a folder, or None if it is unknown.

    `label` is the feature with the class of a set that has several. Raises UserError if
    the set has a known layout but is incomplete or unsupported.
    """
    if (root / INFO_FILE).is_file() and (root / _FEATURES_FILE).is_file():
        return _tfds_layout(root, label)
    paths = {}
    for split in manifest.SPLITS:
        if names := _shard_names(root, split):
            paths[split] = names
        elif (root / split).is_dir() and (names := _shard_names(root / split, split)):
            paths[split] = [f"{split}/{name}" for name in names]
    if not paths:
        return None
    return Layout(root, paths, "records in the layout of the TPU scripts")


def conversion_command(*words: str) -> str:
    """Returns the command that converts what the flags name."""
    words = *words, "--local_scratch_dir=RECORDS"
    return commands.command("imagenet-to-tfrecords", *words)


def refuse_other_names(root: pathlib.Path) -> None:
    """Raises UserError if a folder without a layout has record files of other names."""
    paths = itertools.chain(root.iterdir(), root.glob("*/*"))
    files = [p.name for p in paths if _RECORD_FILE.search(p.name) and p.is_file()]
    if files:
        raise UserError(
            "record files of other programs must be named as by the TPU scripts"
            " (train-00000-of-00001, validation-00000-of-00001; features"
            f" {tf_example.ENCODED} and {tf_example.LABEL}) or be those of"
            f" tensorflow_datasets with its {INFO_FILE}; {root} has {len(files):,} of"
            f" other names: {first_of(sorted(files))}. Rename them, or convert the"
            f" images: {conversion_command(*Layout.conversion)}."
        )


def _shard_names(folder: pathlib.Path, split: str) -> list[str]:
    """Returns the names of a split's record files in order; empty if there are none."""
    matches = [match for n in os.listdir(folder) if (match := SHARD_NAME.fullmatch(n))]
    names = {match[0] for match in matches if match[1] == split}
    totals = {match[3] for match in matches if match[1] == split}
    if not names:
        return []
    if len(totals) > 1:
        raise UserError(
            f"{folder} must contain one set of {split} records; it contains files of"
            f" sets with {' and '.join(sorted(totals))} files. Move the others away."
        )
    num_shards = int(totals.pop())
    wanted = [
        manifest.shard_name(split, index, num_shards) for index in range(num_shards)
    ]
    if missing := [name for name in wanted if name not in names]:
        raise UserError(
            f"{folder} must contain {num_shards:,} record files of split {split};"
            f" {len(missing):,} are missing: {first_of(missing)}. Copy the set"
            " again or finish its conversion."
        )
    return wanted


def _tfds_layout(root: pathlib.Path, label: str | None) -> Layout:
    what, advice = "what tensorflow_datasets says of a set", "Prepare it again."
    info = json_file.read(root / INFO_FILE, dict, what, advice)
    features = json_file.read(root / _FEATURES_FILE, dict, what, advice)
    try:
        return _parse_tfds(root, info, features, label)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{root / INFO_FILE} and {root / _FEATURES_FILE} must be files of"
            " tensorflow_datasets 4.4 or newer; reading them failed"
            f" ({type(error).__name__}: {error}). Prepare the data set again."
        ) from error


def _parse_tfds(
    root: pathlib.Path, info: Any, features: Any, label: str | None
) -> Layout:
    file_format = info.get("fileFormat", "tfrecord")
    if file_format != "tfrecord":
        raise UserError(
            f"the data set in {root} must be in the file format tfrecord; it is in"
            f" {file_format}. Prepare it again with file_format='tfrecord'."
        )
    by_name = features["featuresDict"]["features"]
    kinds = {name: f["pythonClassName"].split(".")[-1] for name, f in by_name.items()}
    name = "/".join(filter(None, (info["name"], info.get("configName"))))
    folder = root.parent.parent.parent if "/" in name else root.parent.parent
    conversion = f"--tfds_name={name}", f"--tfds_data_dir={folder}"
    image_key, label_key = choose_image_and_label(
        f"the data set in {root}", kinds, label, conversion
    )
    num_classes = int(by_name[label_key]["classLabel"]["numClasses"])
    if not 1 <= num_classes <= MAX_CLASSES:
        raise UserError(
            f"the data set in {root} must have from 1 to {MAX_CLASSES:,} classes; it"
            f" states {num_classes:,}. Prepare it again."
        )

    parts = {part["name"]: part for part in info["splits"] if part.get("shardLengths")}
    chosen = {
        manifest.TRAIN: parts.get("train"),
        manifest.VALIDATION: parts.get("validation", parts.get("test")),
    }
    paths = {}
    num_records = {}
    for split, part in chosen.items():
        if part is not None:
            num_records[split] = [int(length) for length in part["shardLengths"]]
            paths[split] = _tfds_paths(info["name"], part, len(num_records[split]))
    names = list(itertools.chain.from_iterable(paths.values()))
    if len(set(names)) < len(names) or not all(map(manifest.is_inside, names)):
        raise ValueError(f"its shards can't have the paths {names[:3]}")
    if not paths:
        raise UserError(
            f"the data set in {root} must have a split train, validation or test; its"
            f" splits: {', '.join(sorted(parts)) or 'none'}"
        )
    return Layout(
        root=root,
        paths=paths,
        description=f"tensorflow_datasets {info['name']} {info.get('version', '')}",
        num_records=num_records,
        image_key=image_key,
        label_key=label_key,
        name_key=None,
        class_names=_tfds_class_names(root / f"{label_key}.labels.txt", num_classes),
        conversion=conversion,
    )


def _tfds_paths(dataset: str, part: dict[str, Any], num_shards: int) -> list[str]:
    template = part.get("filepathTemplate") or _DEFAULT_TEMPLATE
    digits = max(5, len(str(num_shards)))
    total = f"{num_shards:0{digits}d}"
    return [
        template.format(
            DATASET=dataset,
            SPLIT=part["name"],
            FILEFORMAT="tfrecord",
            SHARD_INDEX=index,
            NUM_SHARDS=total,
            SHARD_X_OF_Y=f"{index}-of-{total}",
        )
        for index in (f"{number:0{digits}d}" for number in range(num_shards))
    ]


def _tfds_class_names(path: pathlib.Path, num_classes: int) -> tuple[str, ...]:
    try:
        lines = regular_file.read_lines(path, _MAX_INFO_BYTES)
    except FileNotFoundError:
        return tuple(map(str, range(num_classes)))
    names = tuple(map(normalized, filter(None, lines)))
    if len(names) != num_classes:
        raise UserError(
            f"{path} must contain {num_classes:,} class names, one per line; it"
            f" contains {len(names):,}"
        )
    return names


def choose_image_and_label(
    where: str, kinds: Mapping[str, str], label: str | None, words: Sequence[str] = ()
) -> tuple[str, str]:
    """Returns the features of a data set with the image and, of several, the label.

    `kinds` are the classes of all features by name. The converter takes the `words`, if
    it isn't what runs. Raises UserError if it isn't a set of labelled images.
    """
    images, labels = (
        sorted(name for name, own in kinds.items() if own == kind)
        for kind in ("Image", "ClassLabel")
    )
    if len(images) != 1 or not labels:
        features = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise UserError(
            f"{where} must have one feature of class Image and one of class ClassLabel;"
            f" its features: {features or 'none'}. Only sets of labelled images are"
            " supported."
        )
    if label not in labels and (label or len(labels) > 1):
        choice = f"--tfds_label={labels[0]}"
        if words:
            choice = conversion_command(*words, choice)
        raise UserError(
            f"--tfds_label must be one of {', '.join(labels)} of {where}; got"
            f" {label or 'none'}. Choose one: {choice}"
        )
    return images[0], label or labels[0]
