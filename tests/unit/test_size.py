"""The size of the project, which may grow with what users need (BUILD_NOTES.md)."""

import pytest

from tests.sources import ROOT

# At most so many lines and modules: what there is, and room of some per cent.
MOST = {
    "product lines": 46_525,
    "product modules": 301,
    "lab lines": 3_200,
    "test lines": 49_155,
}


def sizes() -> dict[str, int]:
    files = [
        path.relative_to(ROOT)
        for folder in ("resnet", "data_prep", "launch", "eval", "install", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    lab = [path for path in files if path.parts[:2] == ("eval", "lab")]
    recipes = [path for path in files if path.parts[:2] == ("install", "spack")]
    product = [path for path in files if path not in {*lab, *recipes}]
    tests = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")]

    def lines(paths) -> int:
        return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)

    return {
        "product lines": lines(product),
        "product modules": len(product),
        "lab lines": lines(lab),
        "test lines": lines(tests),
    }


@pytest.mark.parametrize("what", MOST)
def test_the_project_stays_small(what):
    assert sizes()[what] <= MOST[what]
