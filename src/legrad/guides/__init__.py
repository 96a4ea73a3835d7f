"""Guides that are built from a model."""

from legrad.guides.mean_field import MeanField
from legrad.guides.structured import Structured

__all__ = ["MeanField", "Structured"]
