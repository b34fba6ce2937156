"""A tiny converted set, and jobs of several ranks on this machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
TIMEOUT_SECONDS = 200

Job = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def run_ranks() -> Job:
    """Returns `run(num_ranks, program, *arguments)`; one rank runs without mpirun."""

    def run(
        num_ranks: int, program: str | Path, *arguments: str, cwd: Path = REPOSITORY
    ) -> subprocess.CompletedProcess:
        launcher = [str(MPIRUN), "-np", str(num_ranks)] if num_ranks > 1 else []
        python = [sys.executable, str(REPOSITORY / program)]
        return subprocess.run(
            [*launcher, *python, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    return run


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a converted set: 3 classes, 24 training and 11 validation pictures."""
    folder = tmp_path_factory.mktemp("tiny")
    random = np.random.default_rng(0)
    for split, counts in (("train", (8, 8, 8)), ("validation", (4, 4, 3))):
        for label, count in enumerate(counts):
            class_folder = folder / "raw" / split / f"class{label}"
            class_folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 120, (40, 36, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(class_folder / f"{number}.jpg", quality=95)
    subprocess.run(
        [
            sys.executable,
            REPOSITORY / "data_prep" / "imagenet_to_tfrecords.py",
            f"--raw_data_dir={folder / 'raw'}",
            f"--local_scratch_dir={folder / 'records'}",
            "--train_shards=3",
        ],
        check=True,
        capture_output=True,
    )
    return folder / "records"
