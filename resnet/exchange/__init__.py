"""The exchange of gradients between the ranks, and what it costs.

`gradients.GradientExchange` averages them as they are. Its subclasses average
compressed gradients, or leave each rank its own.
"""
