"""The names of the croppings of `preprocessing`. Needs no TensorFlow."""

AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_crop",
    "random_shift",
    "pad_crop_flip_cutout",
    "none",
)
EVAL_CROPS = ("crop_then_resize", "resize_then_crop")
