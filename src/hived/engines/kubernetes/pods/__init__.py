"""Requests of pods, read from labels, annotations, GPU limits and owners; and the annotations of bound pods."""
