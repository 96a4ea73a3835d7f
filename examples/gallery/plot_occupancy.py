"""
Occupancy: where does the bird live, if it is often overlooked?
===============================================================

A survey visits 150 ponds up to four times and notes whether a shy bird was seen. A bird that is not seen may still be
there; and a quarter of the visits never took place. What share of the ponds is occupied, and how does it depend on
the size of the reed bed?
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import legrad

# %%
# The data
# --------
# Simulated. Visits that were not made are NaN, as in a table that was read from a file.

rng = np.random.default_rng(0)
truth = {"a": -0.2, "b": 1.0, "p": 0.35}
reed = rng.normal(size=150)
lives_there = rng.random(150) < expit(truth["a"] + truth["b"] * reed)
seen = ((rng.random((150, 4)) < truth["p"]) & lives_there[:, None]).astype(float)
seen[rng.random((150, 4)) < 0.25] = np.nan
made = ~np.isnan(seen)

# %%
# The model
# ---------
# ``z`` says whether a pond is occupied. A mask leaves out the visits that were not made.


def model(seen, made, reed):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("ponds", seen.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Bernoulli(logits=a + b * reed[:, None]))
        with numpyro.plate("visits", seen.shape[1], dim=-1), numpyro.handlers.mask(mask=made):
            numpyro.sample("seen", dist.Bernoulli(z * p), obs=seen)


result = legrad.fit(model, args=(np.nan_to_num(seen), made, reed), key=0)
print(result.method)

# %%
# The answer
# ----------

draws = {name: np.asarray(values) for name, values in result.sample(1, 2000).items()}
z = draws["z"].reshape(2000, -1)
share = z.mean(1)
naive = (np.nan_to_num(seen).sum(1) > 0).mean()

grid = np.linspace(-2.5, 2.5, 100)
curve = expit(draws["a"][:, None] + draws["b"][:, None] * grid)
ever = np.nan_to_num(seen).sum(1) > 0
visits = made.sum(1)

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(grid, curve.mean(0), label="fit, with 90% band")
left.fill_between(grid, *np.quantile(curve, [0.05, 0.95], axis=0), alpha=0.25)
left.plot(grid, expit(truth["a"] + truth["b"] * grid), "k--", label="truth")
left.set(xlabel="size of the reed bed (standardized)", ylabel="P(occupied)")
left.legend(frameon=False, loc="upper left")
image = right.scatter(reed[~ever], z.mean(0)[~ever], c=visits[~ever], cmap="viridis", s=22, vmin=0, vmax=4)
fig.colorbar(image, ax=right, label="visits made", ticks=range(5))
right.set(xlabel="size of the reed bed (standardized)", ylabel="P(occupied), if never seen", ylim=(0, 1))

# %%
# The right panel shows the ponds at which the bird was never seen. The fewer the visits and the larger the reed bed,
# the less that says.

low, high = np.quantile(share, [0.05, 0.95])
true_share = lives_there.mean()
print(f"seen at {naive:.0%} of the ponds; occupied: {share.mean():.0%} (90% interval {low:.0%} to {high:.0%})")
print(f"true share: {true_share:.0%}")
for name, value in truth.items():
    print(f"{name}: {draws[name].mean():.2f} ± {draws[name].std():.2f}, true: {value}")

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2)
print(diagnosis)

# %%
# Each ``z`` meets only its own visits, so all of them are summed out, one at a time, and three numbers are left. Most
# of the running time is compiling.
#
# What the fit cannot say
# -----------------------
# The model assumes that every visit to an occupied pond has the same chance of seeing the bird. If that chance
# depends on the pond, the share of occupied ponds will come out too low: ponds where birds stay hidden look empty.
