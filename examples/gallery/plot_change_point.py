"""
Change point: when did coal mining become safer?
================================================

Between 1851 and 1961 there were 191 disasters with ten or more dead in British coal mines, between none and six a
year. It looks as if their rate dropped once. In which year, by how much, and how sure can we be?
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

# %%
# The data
# --------
# The number of disasters in each year (Jarrett, 1979), a classic example of a change point.

disasters = np.array([
    4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5, 2, 2, 3, 4, 2,
    1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0,
    0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])  # fmt: skip
years = 1851 + np.arange(len(disasters))

# %%
# The model
# ---------
# One rate holds before the year ``t``, another from then on. The change point is an integer, so a sampler such as
# NUTS cannot move it, and there is no gradient with respect to it.


def model(y):
    early = numpyro.sample("early", dist.Exponential(0.3))
    late = numpyro.sample("late", dist.Exponential(0.3))
    t = numpyro.sample("t", dist.DiscreteUniform(0, len(y) - 1))
    rate = jnp.where(jnp.arange(len(y)) < t, early, late)
    with numpyro.plate("years", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


result = legrad.fit(model, args=(disasters,), key=0)
print(result.method)

# %%
# ``fit`` noticed that the change point only chooses between two forms of each year's density, and summed it out
# exactly. Two continuous latents are left, for which it fitted a Gaussian in unconstrained space.
#
# The answer
# ----------

draws = {name: np.asarray(values) for name, values in result.sample(1, 4000).items()}
change = 1851 + draws["t"]
probability = np.array([(change == year).mean() for year in years])

fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, height_ratios=(2, 1), layout="constrained")
top.bar(years, disasters, color="0.8", label="disasters")
rates = np.where(years < change[:, None], draws["early"][:, None], draws["late"][:, None])
low, high = np.quantile(rates, [0.05, 0.95], axis=0)
top.plot(years, rates.mean(0), color="C3", label="rate: posterior mean")
top.fill_between(years, low, high, color="C3", alpha=0.25, label="rate: 90% interval")
top.set_ylabel("disasters in a year")
top.legend(loc="upper right", frameon=False)
bottom.bar(years, probability, color="C0")
bottom.set(xlabel="year", ylabel="P(the rate\nchanged here)")

# %%

low, high = np.quantile(change, [0.05, 0.95])
ratio = draws["early"] / draws["late"]
print(
    f"90% of the probability is between {low:.0f} and {high:.0f};"
    f" the most likely year is {years[probability.argmax()]}"
)
print(
    f"the early rate is {ratio.mean():.1f} times the late one"
    f" (90% interval {np.quantile(ratio, [0.05, 0.95]).round(1)})"
)

# %%
# Is the fit right?
# -----------------
# The diagnosis compares the moments of the guide with those of its draws, reweighted to the posterior.

diagnosis = result.diagnose(2)
print(diagnosis)

# %%
# Here the truth can also be computed. Given ``t`` the rates have Gamma posteriors, so the probability of each year is
# known up to a constant, and the fit should agree with it.

from scipy.special import gammaln  # noqa: E402

before = np.concatenate([[0], disasters.cumsum()[:-1]])  # disasters before year t
n_before = np.arange(len(disasters))
after, n_after = disasters.sum() - before, len(disasters) - n_before
log_p = gammaln(before + 1) - (before + 1) * np.log(n_before + 0.3)
log_p = log_p + gammaln(after + 1) - (after + 1) * np.log(n_after + 0.3)
exact = np.exp(log_p - log_p.max())
exact /= exact.sum()
error = np.abs(probability - exact).max()
print(f"largest difference to the exact probability of a year: {error:.3f}, with 4,000 draws")

# %%
# What the fit cannot say
# -----------------------
# That there was *one* sudden change is assumed, not found: in a slow decline the model would put a change point
# somewhere as well. Nor does it say why the rate fell. Nearly all of the running time is compiling; the fit itself
# is a small optimization.
