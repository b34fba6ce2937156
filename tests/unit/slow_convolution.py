"""A convolution as its definition says, for tests."""

import numpy as np


def slow_convolution(images: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """The TPU recipe's: pads by k - 1 in all, the smaller half before, then VALID."""
    size = kernel.shape[0]
    before = (size - 1) // 2
    sides = (before, size - 1 - before)
    padded = np.pad(images.astype(np.float64), ((0, 0), sides, sides, (0, 0)))
    height = (padded.shape[1] - size) // stride + 1
    width = (padded.shape[2] - size) // stride + 1
    outputs = np.zeros((len(images), height, width, kernel.shape[3]))
    for y in range(height):
        for x in range(width):
            top, left = y * stride, x * stride
            window = padded[:, top : top + size, left : left + size, :]
            outputs[:, y, x] = np.einsum("bijc,ijcf->bf", window, kernel)
    return outputs
