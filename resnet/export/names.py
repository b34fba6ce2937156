"""Names in exported networks that their writers and readers share."""

from pathlib import Path

# The signatures of a SavedModel; the first is the one that servers take by default.
OF_ENCODED_IMAGES = "serving_default"
OF_DECODED_IMAGES = "decoded_images"

# The description of the network: in the folder that TensorFlow leaves to the makers of
# a SavedModel; in the zip archive that a .keras file is, or that follows a network of
# TensorFlow Lite; and as an entry of the metadata that other formats have.
CONTENTS_OF_SAVED_MODEL = Path("assets.extra", "contents.json")
CONTENTS_FILE = "contents.json"
KEY = "resnet_cpu"

OPENVINO_FILE = "model.xml"  # The weights are beside it, in model.bin.
