"""The names of augmentations, crops and views. Needs no TensorFlow."""

from typing import NamedTuple

AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_crop",
    "random_shift",
    "pad_crop_flip_cutout",
    "pad_crop_flip",
    "none",
)
FLIPS = ("random", "alternating")
# The smallest fraction of an image's area that a random resized crop takes, even if
# `min_crop_area` is smaller: `min_object_covered` of the TPU code.
MIN_OBJECT_COVERED = 0.1
EVAL_CROPS = ("crop_then_resize", "resize_then_crop")


class Views(NamedTuple):
    """The views of test-time augmentation.

    Attributes:
        num_crops: The number of crops of each image that the input makes.
        has_flips: Whether the horizontal flips of all views are evaluated, too.
        has_shifts: Whether the images shifted by a pixel to the top left and to the
            bottom right are, each with half the weight of the image itself.
    """

    num_crops: int = 1
    has_flips: bool = False
    has_shifts: bool = False


VIEWS = {
    "center": Views(),
    "flip": Views(has_flips=True),
    "flip_and_shift": Views(has_flips=True, has_shifts=True),
    "five_crops": Views(num_crops=5),
    "ten_crops": Views(num_crops=5, has_flips=True),
}

# The mean and standard deviation of ImageNet's channels, on a scale of 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STDDEV = (0.229, 0.224, 0.225)
