"""
Missing data: what were the answers that nobody gave?
=====================================================

A table of yes-or-no items has holes: a fifth of its entries are missing. What were they, and how sure can we be of
each?
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_digits

import legrad

# %%
# The data
# --------
# Each row is one of 200 handwritten digits, 0 to 3, each column one of 20 pixels, black or white. A fifth of the
# entries are hidden at random, so that we know what they were.

rng = np.random.default_rng(0)
digits = load_digits(n_class=4)
pixels = (digits.data > 7).astype(int)
pixels = pixels[:200, np.argsort(-pixels.var(0), kind="stable")[:20]]
hidden = rng.random(pixels.shape) < 0.2
row, column = np.nonzero(~hidden)
missing_row, missing_column = np.nonzero(hidden)

# %%
# The model
# ---------
# Rows belong to one of five classes, which differ in the probability of each item. The missing entries are latents
# like any other.


def model(entries, K=5):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("items", pixels.shape[1], dim=-1), numpyro.plate("classes", K, dim=-2):
        theta = numpyro.sample("theta", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(pixels)):
        z = numpyro.sample("z", dist.Categorical(share))
    with numpyro.plate("known", len(row)):
        numpyro.sample("entry", dist.Bernoulli(theta[z[row], column]), obs=entries)
    with numpyro.plate("unknown", len(missing_row)):
        numpyro.sample("missing", dist.Bernoulli(theta[z[missing_row], missing_column]))


# %%
# Given the table of probabilities ``theta``, the class of each row and every missing entry can be summed out exactly;
# :func:`legrad.marginalize` does that. The shares and the table are left for the guide. Classes that start equal
# would stay equal, so the table starts at random values. The probabilities need no great accuracy: hence the
# tolerance of a tenth of a standard deviation.

summed = legrad.marginalize(model)
guide = legrad.MeanField(summed, init={"theta": rng.uniform(0.3, 0.7, (5, 20))})
stop = legrad.AutoStop(tolerance=0.1)
result = legrad.fit(summed, guide, args=(pixels[row, column],), key=0, stop=stop)
print(result.status)

# %%
# The answer
# ----------
# ``sample`` draws the classes and the missing entries back, jointly with the rest.

imputed = np.asarray(result.sample(1, 1000)["missing"]).mean(0)
true = pixels[hidden]
base = np.array([pixels[~hidden[:, c], c].mean() for c in range(20)])[missing_column]

bins = np.linspace(0, 1, 11)
which = np.clip(np.digitize(imputed, bins) - 1, 0, 9)
filled = [k for k in range(10) if (which == k).sum() >= 5]
predicted = np.array([imputed[which == k].mean() for k in filled])
frequency = np.array([true[which == k].mean() for k in filled])

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=(1.3, 1), layout="constrained")
left.hist([imputed[true == 0], imputed[true == 1]], bins, stacked=True, label=["was 0", "was 1"])
left.set(xlabel="imputed P(1)", ylabel="missing entries")
left.legend(frameon=False, loc="upper center")
right.plot([0, 1], [0, 1], color="0.7", lw=1)
right.plot(predicted, frequency, "o-")
right.set(xlabel="imputed P(1)", ylabel="frequency of 1 among the hidden entries", aspect="equal")

# %%

accuracy, by_column = ((imputed > 0.5) == true).mean(), ((base > 0.5) == true).mean()
calibration = np.abs(predicted - frequency).max()
print(
    f"{len(true)} hidden entries: {accuracy:.0%} are imputed correctly;"
    f" by the most frequent value of a column, {by_column:.0%}"
)
print(f"largest gap between imputed probability and frequency: {calibration:.2f}")

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2, n=1000)
print("\n".join(str(diagnosis).splitlines()[:8]))

# %%
# The guide takes the numbers of the table as independent, which they are not: rows between two classes tie them
# together. k-hat says so: do not take statements about many of these numbers at once from this fit. The imputations
# average over the table, and the right panel checks them directly: where the fit says 80%, about 80% of the hidden
# entries are ones. Most of the running time is compiling.
#
# What the fit cannot say
# -----------------------
# Entries were hidden at random. If answers are missing because of what they are, no imputation from the other
# answers is right, and nothing in the table would show it. Within a class, items are taken as independent.
