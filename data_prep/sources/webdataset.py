"""Lists the images in tar archives: WebDataset's shards, or class folders.

imagenet-train-000000.tar    0001.jpg and 0001.cls or 0001.json, or cat/0001.jpg ...

The files of a sample have the same key: their path up to the first dot in its last
part. Source: https://github.com/webdataset/webdataset, `base_plus_ext`.
"""

import json
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from data_prep.records.class_names import normalized
from data_prep.sources import container_files, folders, imagenet_labels, tar_members
from data_prep.sources.container_files import Label, LabelledImage
from data_prep.sources.image_list import Source
from data_prep.sources.tar_members import Member
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.text import first_of

CLASS_NAMES = "classnames.txt"  # One name a line, beside the archives.
_EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_OTHERS = ("ILSVRC2012_", "cifar-10-", "cifar-100-")  # Archives with another content.
_IMAGE = "image"
_TEXT, _JSON, _FOLDER = ".cls", ".json", "class folder"  # Where the class is.
_KINDS = {  # Of the files that are read, by the last part of the name.
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), _IMAGE),
    **{"cls": _TEXT, "json": _JSON},
}
_MAX_TEXT_BYTES = 1 << 20
_KEYS = (  # Of the class in JSON, either as a number or as a name.
    *("label", "class", "class_index", "class_id", "label_index", "category_id"),
    *("class_name", "label_name", "category", "cls", "target", "synset"),
)


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the archives in `root` and its folders of splits, also compressed ones.

    Those of ImageNet and CIFAR aren't among them.
    """
    paths = container_files.find(root, _EXTENSIONS)
    return [path for path in paths if not path.name.startswith(_OTHERS)]


def read(root: pathlib.Path, validation_split: str | None = None) -> Source:
    """Returns the images of the archives that `find` finds; reads headers and labels.

    Raises UserError if an archive is compressed or truncated, or if a sample doesn't
    have one image and one class.
    """
    paths, warnings = container_files.by_split(root, find(root), validation_split)
    labels = _Labels()
    known: tuple[str, ...] = ()
    if (file := root / CLASS_NAMES).is_file():
        text = regular_file.read_bytes(file, _MAX_TEXT_BYTES).decode("utf-8", "replace")
        known = tuple(map(normalized, filter(None, map(str.strip, text.splitlines()))))
    splits = container_files.list_splits(
        root,
        {
            split: (image for shard in shards for image in _images(shard, labels))
            for split, shards in paths.items()
        },
        known,
        labels.names,
    )
    class_names = next(iter(splits.values())).class_names
    return Source(
        class_names=class_names,
        class_descriptions=imagenet_labels.describe(class_names),
        splits=splits,
        num_ignored_files=labels.ignored.total(),
        ignored_kinds=dict(sorted(labels.ignored.items())),
        description={"raw_data_dir": str(root), "webdataset": True},
        warnings=warnings,
    )


class _Labels:
    """What is known of the classes while the samples are read."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # Of numbers that JSON has with a name.
        self.ignored: Counter[str] = Counter()  # Numbers of files by their kind.
        self._place = ""  # Where the class of all samples is, and of which sample.
        self._first = ""

    def check_place(self, place: str, sample: str) -> None:
        """Raises UserError if the class of a sample isn't where that of others is."""
        self._place, self._first = self._place or place, self._first or sample
        if place != self._place:
            raise UserError(
                f"all samples must have their class in the same place; that of {sample}"
                f" is in its {place or 'file name'}, that of {self._first} in its"
                f" {self._place}. Write it for all, as NAME{_TEXT}."
            )

    def of_json(self, content: bytes, where: str) -> Label:
        """Returns the class in a JSON file."""
        try:
            values = json.loads(content)
        except ValueError as error:
            raise UserError(f"{where} must be JSON: {error}") from error
        values = values if isinstance(values, dict) else {}
        fitting = {key: values[key] for key in _KEYS if key in values}
        numbers = [v for v in fitting.values() if type(v) is int]
        texts = [v for v in fitting.values() if isinstance(v, str) and v.strip()]
        if len(numbers) > 1 or len(texts) > 1 or not (numbers or texts):
            raise UserError(
                f"{where} must have the class as one number, one name or both, under"
                f" {', '.join(_KEYS)}; it has {first_of(fitting or values) or 'none'}."
                f" Write it to a file with the sample's key and {_TEXT}."
            )
        if not numbers:
            return _label(texts[0].strip())
        if texts and texts[0] != self.names.setdefault(numbers[0], texts[0]):
            raise UserError(
                f"each class must have one name; {where} names {numbers[0]} as"
                f" {texts[0]!r}, another sample as {self.names[numbers[0]]!r}"
            )
        return numbers[0]


def _images(shard: pathlib.Path, labels: _Labels) -> Iterator[LabelledImage]:
    """Yields the images of an archive in the order of its samples."""
    with open(shard, "rb", buffering=0) as file:
        for key, sample in _samples(file, str(shard), labels.ignored).items():
            image, text, description = map(sample.get, (_IMAGE, _TEXT, _JSON))
            if image is None:
                labels.ignored.update(sample)
                continue
            where = f"{shard}: {image.name}"
            filename = image.name.removeprefix("./")
            folder, _, name = filename.rpartition("/")
            label: Label
            if text is not None:
                place, label = _TEXT, _label(_text(file, text, str(shard)))
            elif description is not None:
                content = _read(file, description, str(shard))
                place = _JSON
                label = labels.of_json(content, f"{shard}: {description.name}")
            elif folder:
                place, label, filename = _FOLDER, folder.rpartition("/")[2], name
            else:
                raise UserError(
                    f"{where} has no class: there is neither {key}{_TEXT} nor"
                    f" {key}{_JSON}, nor is the image in a class folder"
                )
            labels.check_place(place, where)
            yield LabelledImage(
                str(shard), filename, label, image.offset, image.num_bytes
            )


def _samples(
    file: BinaryIO, where: str, ignored: Counter[str]
) -> dict[str, dict[str, Member]]:
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
            problem = f"has {name!r} twice"
            if other.name != name:
                problem = (
                    f"has two files for it in sample {key!r}: {other.name} and {name}"
                )
            raise UserError(
                f"{where} must have one {kind} file of each key (up to the first"
                f" dot); it {problem}. Rename one of them."
            )
    return samples


def _read(file: BinaryIO, member: Member, where: str) -> bytes:
    """Returns the content of a file with the class."""
    if member.num_bytes > _MAX_TEXT_BYTES:
        raise UserError(
            f"{where}: {member.name} must be the class of an image; it has"
            f" {member.num_bytes:,} bytes"
        )
    return os.pread(file.fileno(), member.num_bytes, member.offset)


def _text(file: BinaryIO, member: Member, where: str) -> str:
    """Returns the text of a class."""
    try:
        if text := _read(file, member, where).decode().strip():
            return text
    except UnicodeDecodeError:
        pass
    raise UserError(
        f"{where}: {member.name} must have a number or a name as text in UTF-8"
    )


def _label(text: str) -> Label:
    """Returns a number that is written as one, without zeros before it, as number."""
    return int(text) if re.fullmatch("0|-?[1-9][0-9]*", text) else text
