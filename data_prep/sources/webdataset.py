"""Lists the images in tar archives: WebDataset's shards, or class folders.

imagenet-train-000000.tar    0001.jpg and 0001.cls or 0001.json, or cat/0001.jpg ...

The files of a sample have the same key: their path up to the first dot in its last
part. Source: https://github.com/webdataset/webdataset, `base_plus_ext`.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from data_prep.sources import container_files, folders, tar_members
from data_prep.sources.container_files import Label, LabelledImage
from data_prep.sources.image_list import Source
from data_prep.sources.tar_members import Member
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.base.text import first_of

CLASS_NAMES = "classnames.txt"  # One name a line, beside the archives.
_EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_OTHERS = ("ILSVRC2012_", "cifar-10-", "cifar-100-")  # Archives with another content.
_IMAGE = "image"
_TEXT, _JSON, _FOLDER = ".cls", ".json", "class folder"  # Where the class is.
_KINDS = {  # Of the files that are read, by the last part of the name.
    **dict.fromkeys(("jpg", "jpeg", "png", "tif", "tiff", "webp"), _IMAGE),
    **{"cls": _TEXT, "json": _JSON},
}
_MAX_TEXT_BYTES = 1 << 20
_KEYS = (  # Of the class in JSON, either as a number or as a name.
    *("label", "class", "class_index", "class_id", "label_index", "category_id"),
    *("class_name", "label_name", "category", "cls", "target", "synset"),
)


def find(root: pathlib.Path, validation_split: str | None = None) -> list[pathlib.Path]:
    """Returns the archives in `root` and its folders of splits, also compressed ones.

    Those of ImageNet and CIFAR aren't among them.
    """
    paths = container_files.find(root, validation_split, _EXTENSIONS)
    return [path for path in paths if not path.name.startswith(_OTHERS)]


def read(root: pathlib.Path, validation_split: str | None = None) -> Source:
    """Returns the images of the archives that `find` finds; reads headers and labels.

    Raises UserError if an archive is compressed or truncated, or if a sample doesn't
    have one image and one class.
    """
    labels = _Labels()
    known: tuple[str, ...] = ()
    if (file := root / CLASS_NAMES).is_file():
        text = regular_file.read_bytes(file, _MAX_TEXT_BYTES).decode("utf-8", "replace")
        known = tuple(map(normalized, filter(None, map(str.strip, text.splitlines()))))
    source = container_files.read(
        root,
        find(root, validation_split),
        validation_split,
        lambda shard: _images(shard, labels),
        known,
        labels.names,
    )
    return dataclasses.replace(
        source,
        num_ignored_files=labels.ignored.total(),
        ignored_kinds=dict(sorted(labels.ignored.items())),
    )


class _Labels:
    """What is known of the classes while the samples are read."""

    def __init__(self) -> None:
        self.place = ""  # Where the class of all samples is.
        self.names: dict[int, str] = {}  # Of numbers that JSON has with a name.
        self.ignored: Counter[str] = Counter()  # Numbers of files by their kind.

    def of_json(self, text: str, where: str) -> Label:
        """Returns the class in a JSON file."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise UserError(f"{where} must be JSON: {error}") from error
        values = values if isinstance(values, dict) else {}
        fitting = {key: values[key] for key in _KEYS if key in values}
        numbers = [v for v in fitting.values() if type(v) is int]
        texts = [v.strip() for v in fitting.values() if isinstance(v, str)]
        if len(numbers) > 1 or len(texts) > 1 or not any((*texts, *map(str, numbers))):
            raise UserError(
                f"{where} must have the class as one number, one name or both, under"
                f" {', '.join(_KEYS)}; it has {first_of(fitting or values) or 'none'}."
                f" Write it to a file with the sample's key and {_TEXT}."
            )
        if not numbers:
            return _label(texts[0])
        if texts and texts[0] != self.names.setdefault(numbers[0], texts[0]):
            raise UserError(
                f"each class must have one name; {where} names {numbers[0]} as"
                f" {texts[0]!r}, another sample as {self.names[numbers[0]]!r}"
            )
        return numbers[0]


def _images(shard: pathlib.Path, labels: _Labels) -> Iterator[LabelledImage]:
    """Yields the images of an archive in the order of its samples."""
    with open(shard, "rb", buffering=0) as file:
        for sample in _samples(file, str(shard), labels.ignored):
            image = sample.pop(_IMAGE, None)
            if image is None:
                labels.ignored.update(sample)
                continue
            filename = image.name.removeprefix("./")
            folder, _, name = filename.rpartition("/")
            place = next((p for p in (_TEXT, _JSON) if p in sample), folder and _FOLDER)
            labels.place = labels.place or place
            if not place or place != labels.place:
                raise UserError(
                    f"{shard}: {image.name} must have its class in its"
                    f" {labels.place or f'{_TEXT}, {_JSON} or {_FOLDER}'}, as other"
                    f" images; it has {place or 'none'}"
                )
            label: Label = folder.rpartition("/")[2]
            if place == _FOLDER:
                filename = name
            else:
                where = f"{shard}: {sample[place].name}"
                text = _text(file, sample[place], where)
                label = labels.of_json(text, where) if place == _JSON else _label(text)
            yield LabelledImage(
                str(shard), filename, label, image.offset, image.num_bytes
            )


def _samples(
    file: BinaryIO, where: str, ignored: Counter[str]
) -> Iterable[dict[str, Member]]:
    """Returns the files of each sample by their kind, and counts the other files."""
    samples: dict[str, dict[str, Member]] = {}
    for member in tar_members.members(file, where):
        name = member.name
        base = name[name.rfind("/") + 1 :]
        stem, _, extension = base.partition(".")
        if not stem:  # A hidden file.
            continue
        extension = extension.rpartition(".")[2].lower()
        kind = _KINDS.get(extension)
        if kind is None:
            ignored[f".{extension}" if extension else folders.NO_EXTENSION] += 1
            continue
        key = name[: len(name) - len(base) + len(stem)]
        other = samples.setdefault(key, {}).setdefault(kind, member)
        if other is not member:
            raise UserError(
                f"{where} must have one {kind} file of the key {key!r}, which ends at"
                f" the first dot; it has {other.name!r} and {name!r}. Rename one."
            )
    return samples.values()


def _text(file: BinaryIO, member: Member, where: str) -> str:
    """Returns the text of a file with the class."""
    num_bytes = min(member.num_bytes, _MAX_TEXT_BYTES)
    text = os.pread(file.fileno(), num_bytes, member.offset).decode("utf-8", "replace")
    if not text.strip() or "\ufffd" in text:
        raise UserError(f"{where} must have a class as text in UTF-8")
    return text.strip()


def _label(text: str) -> Label:
    """Returns a number that is written as one, without zeros before it, as number."""
    return int(text) if re.fullmatch("0|-?[1-9][0-9]*", text) else text
