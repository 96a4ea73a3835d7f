"""
N-mixture: how many salamanders are there, if each visit sees only some?
========================================================================

Salamanders are counted at 40 streams, up to four times each. A visit misses many of them, and a fifth of the visits
was cancelled. How many animals live at a stream, and what share of them does a visit see?
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

# %%
# The data
# --------
# Simulated: 6 animals on average, of which a visit sees 45%. Missing counts are marked by ``made``.

rng = np.random.default_rng(0)
truth = {"lam": 6.0, "p": 0.45}
animals = rng.poisson(truth["lam"], 40)
counts = rng.binomial(animals[:, None], truth["p"], size=(40, 4))
made = rng.random((40, 4)) < 0.8
counts[~made] = 0

# %%
# The model
# ---------
# The number of animals at a stream has no upper limit, and is at least the largest count.


def model(counts, made):
    lam = numpyro.sample("lam", dist.Gamma(2.0, 0.2))
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("streams", counts.shape[0], dim=-2):
        N = numpyro.sample("N", dist.Poisson(lam))
        with numpyro.plate("visits", counts.shape[1], dim=-1), numpyro.handlers.mask(mask=made):
            numpyro.sample("counts", dist.Binomial(N, p), obs=counts)


result = legrad.fit(model, args=(counts, made), key=0)
print(result.method)

# %%
# The answer
# ----------
# The Gaussian guide is a little too narrow here, as the diagnosis below says, so the draws are corrected by their
# importance weights.

draws = {name: np.asarray(values) for name, values in result.sample(1, 1000, corrected=True).items()}
N = draws["N"].reshape(1000, -1)
low, middle, high = np.quantile(N, [0.05, 0.5, 0.95], axis=0)
order = np.argsort(middle)

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(1, 1.6), layout="constrained")
left.scatter(draws["lam"], draws["p"], s=4, alpha=0.4, label="posterior")
left.plot(truth["lam"], truth["p"], "k+", ms=14, mew=2, label="truth")
left.set(xlabel="mean number of animals", ylabel="share seen by a visit")
left.legend(frameon=False)
place = np.arange(40)
right.vlines(place, low[order], high[order], color="C0", alpha=0.5, label="90% interval")
right.plot(place, animals[order], "k.", label="true number")
right.plot(place, np.where(made, counts, 0).max(1)[order], "C1_", label="largest count")
right.set(xlabel="stream, sorted by the posterior median", ylabel="animals")
right.legend(frameon=False, loc="upper left")

# %%
# The left panel shows the trouble with such data: a few animals that are easily seen and many that hide give nearly
# the same counts. The guide can express this correlation; independent factors could not.

covered = ((low <= animals) & (animals <= high)).mean()
print(f"{covered:.0%} of the true numbers are inside their 90% intervals")
for name, value in truth.items():
    print(f"{name}: {draws[name].mean():.2f} ± {draws[name].std():.2f}, true: {value}")
correlation = np.corrcoef(np.log(draws["lam"]), draws["p"])[0, 1]
print(f"correlation of log lam and p: {correlation:.2f}")

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2, n=4000)
print(diagnosis)

# %%
# Each number of animals is summed over a window of integers around its largest term. A warning would say if the
# window left something out. Most of the running time is compiling.
#
# What the fit cannot say
# -----------------------
# The numbers rest on the assumptions that all animals are equally easy to see, and that none comes or goes between
# visits. Counts alone can hardly test that.
