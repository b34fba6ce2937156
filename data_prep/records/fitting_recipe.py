"""The recipe that fits a record set, by its classes and its number of images."""

from data_prep.records.manifest import TRAIN, Manifest

IMAGENET_SIZE = 500_000  # Images. The recipes for ImageNet have batches of thousands.
OWN = "own"  # The recipe that follows from the set.
# The recipes for known sets, by their classes, with the least number of images that
# they are for: others may have the same classes.
_KNOWN = {
    tuple("0123456789"): ("digits", 1_000),
    (
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse"),
        *("ship", "truck"),
    ): ("cifar10", 25_000),
}


def fitting_recipe(contents: Manifest) -> str:
    """Returns the name of a recipe; empty for ImageNet's, which needs no --recipe."""
    split = contents.splits.get(TRAIN)
    num_images = split.num_examples if split else 0
    if num_images >= IMAGENET_SIZE:
        return ""
    name, least = _KNOWN.get(contents.class_names, (OWN, 0))
    return name if num_images >= least and not contents.multi_label else OWN
