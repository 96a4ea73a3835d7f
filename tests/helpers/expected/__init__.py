"""Expectations under a guide, found densely: small programs, and the truth about their ELBOs."""
