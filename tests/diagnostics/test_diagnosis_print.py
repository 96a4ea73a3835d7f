"""What a printed diagnosis says of labels that are certain."""

from legrad.diagnostics.diagnosis import Diagnosis, Shift, SiteShift
from legrad.diagnostics.psis import ElboEstimate


def test_certain_labels_have_no_worst_element():
    certain = SiteShift(Shift(0.0, 0.0, (0, 0), "z[0, 0]"), None)
    off = SiteShift(Shift(-0.05, 0.01, (3,), "x[3]"), Shift(0.02, 0.01, (1,), "x[1]"))
    estimate = ElboEstimate(-3.0, 0.1, -2.9, 0.1, 1000)
    lines = str(Diagnosis(0.1, estimate, {"z": certain, "x": off}, [], 1000)).splitlines()
    assert "  mean  z        the same in all draws" in lines
    assert "  mean  x[3]     -0.050 ± 0.010" in lines
    assert not any("z[0, 0]" in line for line in lines)
