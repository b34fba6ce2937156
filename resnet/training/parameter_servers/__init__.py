"""Asynchronous training on parameter servers, by TensorFlow's distributed runtime.

Rank 0 coordinates: it schedules closures, each of which computes the gradients of one
part of a global batch on any worker and applies them on the servers. The ranks behind
it look after the servers, the others after the workers; each has one child process with
a TensorFlow server.
"""
