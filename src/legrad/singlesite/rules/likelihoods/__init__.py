"""Rules for the log-densities of data: what is known of them beyond the primitives that they are made of."""
