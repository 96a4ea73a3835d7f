"""Guides that are built from a model."""

from legrad.guides.mean_field import MeanField

__all__ = ["MeanField"]
