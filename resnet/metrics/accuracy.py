"""What an accuracy says: how certain it is, and whether it could be less than 100 %."""

import math
from statistics import NormalDist


def top5_is_certain(num_classes: int) -> bool:
    """Returns whether top-5 is always right, as with so few classes; 0 is unknown."""
    return 0 < num_classes <= 5


def interval(accuracy: float, count: int) -> tuple[float, float]:
    """Returns the 95 % confidence interval of an accuracy on at least one image.

    It contains each p with |accuracy - p| <= 1.96 sqrt(p (1 - p) / count).

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical
    inference", Journal of the American Statistical Association 22.
    """
    share = NormalDist().inv_cdf(0.975) ** 2 / count
    middle = accuracy + share / 2
    half = math.sqrt(share * (accuracy * (1 - accuracy) + share / 4))
    low, high = (middle - half) / (1 + share), (middle + half) / (1 + share)
    return max(low, 0.0), min(high, 1.0)


def interval_text(accuracy: float, count: int) -> str:
    """Returns the interval in percent."""
    low, high = interval(accuracy, count)
    return f"{100 * low:.1f} to {100 * high:.1f} %"
