"""The network of the tests in which it doesn't matter which it is."""

NETWORK = "resnet8"
FLAG = f"--model={NETWORK}"
