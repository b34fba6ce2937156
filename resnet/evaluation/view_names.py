"""The views of test-time augmentation by name. Needs no TensorFlow."""

# The number of crops of each image, and whether the network also evaluates their
# horizontal flips.
CROPS_AND_FLIPS = {
    "center": (1, False),
    "flip": (1, True),
    "five_crops": (5, False),
    "ten_crops": (5, True),
}
VIEWS = tuple(CROPS_AND_FLIPS)
