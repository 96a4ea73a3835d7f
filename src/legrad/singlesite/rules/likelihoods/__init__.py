"""Rules for the log-densities of data, which are faster than the rules of the primitives that make them up."""
