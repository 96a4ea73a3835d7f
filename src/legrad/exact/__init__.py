"""Expectations of a program's results that can be computed exactly, given the laws of its independent inputs."""
