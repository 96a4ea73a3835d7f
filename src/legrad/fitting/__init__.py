"""The loop that fits a guide, and the result it returns."""
