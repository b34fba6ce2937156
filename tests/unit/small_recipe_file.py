"""A recipe file for tests, and a function that writes it."""

import json
import pathlib

SMALL = {
    "name": "small",
    "source": "a test",
    "model": "resnet18",
    "image_size": 32,
    "global_batch_size": 4,
    "num_train_examples": 40,
    "phases": [{"epochs": 3, "schedule": {"peak_value": 0.5}}],
}


def write(folder: pathlib.Path, contents: object) -> pathlib.Path:
    """Writes a file into a folder: text, or what becomes JSON."""
    text = contents if isinstance(contents, str) else json.dumps(contents)
    path = folder / "mine.json"
    path.write_text(text)
    return path
