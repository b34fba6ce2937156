"""Compression of gradients: formulas, wire formats and error feedback.

Nothing here knows Horovod or MPI: a method encodes the gradients of one rank to a
message of bytes, and decodes the messages of all ranks to their mean
(`resnet.exchange` sends them).
"""
