"""The names of the augmentations and crops in `preprocessing`. Needs no TensorFlow."""

AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_crop",
    "random_shift",
    "pad_crop_flip_cutout",
    "none",
)
# What "random_resized_crop_2018_02" meant in earlier versions, for runs begun with it.
PARTLY_DECODED_2018_02 = "random_resized_crop_2018_02_partly_decoded"
# The smallest fraction of an image's area that a random resized crop takes, even if
# `min_crop_area` is smaller: `min_object_covered` of the TPU code.
MIN_OBJECT_COVERED = 0.1
EVAL_CROPS = ("crop_then_resize", "resize_then_crop")

# The mean and standard deviation of ImageNet's channels, on a scale of 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STDDEV = (0.229, 0.224, 0.225)
