"""The views of test-time augmentation by name. Needs no TensorFlow."""

# The crops that the input makes of an image, and whether their mirror images are
# evaluated as well.
CROPS_AND_FLIPS = {
    "center": (1, False),
    "flip": (1, True),
    "five_crops": (5, False),
    "ten_crops": (5, True),
}
VIEWS = tuple(CROPS_AND_FLIPS)
