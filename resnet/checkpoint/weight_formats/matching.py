"""Compares a file of weights with a network, before any variable is assigned."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats.stored import Shapes, Stored, WeightFile

CLASSIFIER = "classifier/"  # The beginning of the paths of its variables.
_NUM_NAMED = 3


def require_same(
    path: Path,
    network: str,
    file: WeightFile,
    shapes: Shapes,
    places: Mapping[str, Stored],
    is_extra: Callable[[str], bool],
) -> None:
    """Refuses a file that doesn't hold the weights of a network, all and no others.

    Args:
        path: The path of the file, for the sentence of an error.
        network: The name of the network.
        file: The file.
        shapes: The shapes of our variables by their paths.
        places: The places of variables in the file.
        is_extra: Whether the file may have an array that is none of the weights.

    Raises:
        UserError: Naming the first differences.
    """
    stored = {path: places[path].name for path in shapes if path in places}
    missing = [name for name in stored.values() if name not in file.shapes]
    nowhere = [path for path in shapes if path not in places]
    known = {place.name for place in places.values()}
    surplus = [name for name in file.shapes if name not in known and not is_extra(name)]
    wrong = [
        f"{name!r} must have the shape {places[path].shape_of(shapes[path])}, it has"
        f" {file.shapes[name]}"
        for path, name in stored.items()
        if name in file.shapes
        and places[path].shape_of(shapes[path]) != file.shapes[name]
    ]
    problems = [
        _some("it lacks ", list(map(repr, missing))),
        _some("its format has no ", list(map(repr, nowhere))),
        _some("it has too much: ", list(map(repr, surplus))),
        _some("", wrong),
    ]
    if found := "; ".join(filter(None, problems)):
        raise UserError(
            f"--initial_weights must be those of this {network}; {path}: {found}"
        )


def _some(beginning: str, items: Sequence[str]) -> str:
    """Returns a clause with the first items and the number of the others."""
    if not items:
        return ""
    others = len(items) - _NUM_NAMED
    text = ", ".join(items[:_NUM_NAMED])
    return f"{beginning}{text}{f' and {others} more' if others > 0 else ''}"


def has_other_classes(
    file: WeightFile, shapes: Shapes, places: Mapping[str, Stored]
) -> bool:
    """Returns whether a file has no classifier, or one for another number of classes.

    Args:
        file: The file.
        shapes: The shapes of our variables by their paths.
        places: The places of variables in the file.
    """
    ours = [path for path in shapes if path.startswith(CLASSIFIER) and path in places]
    names = {path: places[path].name for path in ours}
    if not any(name in file.shapes for name in names.values()):
        return True
    return all(
        name in file.shapes
        and _differs_in_classes(
            places[path].shape_in_ours(file.shapes[name]), shapes[path]
        )
        for path, name in names.items()
    )


def _differs_in_classes(theirs: Sequence[int], ours: Sequence[int]) -> bool:
    """Returns whether two shapes differ in the last axis, that of the classes, only."""
    return theirs[:-1] == ours[:-1] and theirs[-1:] != ours[-1:]


def without_classifier(paths: Collection[str]) -> list[str]:
    """Returns the paths of the variables before the classifier."""
    return [path for path in paths if not path.startswith(CLASSIFIER)]
