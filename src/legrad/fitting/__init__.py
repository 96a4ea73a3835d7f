"""The loop that fits, and what it gives back."""
