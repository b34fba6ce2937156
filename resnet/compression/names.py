"""The names of the methods of compression. No TensorFlow."""

# Of sands-lab/layer-wise-aaai20, CIFAR10/core.py, whose names are Randomk, Topk,
# Thresholdv, AdaptiveThreshold, TernGrad and RandomDithering (QSGD in its README).
METHODS = ("randomk", "topk", "thresholdv", "adaptivethreshold", "terngrad", "qsgd")
# What is compressed as one vector: nothing, each variable's gradient, or all of them.
GRANULARITIES = ("none", "layerwise", "entiremodel")
VALUE_DTYPES = ("float32", "bfloat16")
QSGD_NORMS = ("l2", "max")
