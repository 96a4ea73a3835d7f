"""Models that many people need, each with a fit of its own that takes milliseconds: nothing is compiled for them."""
