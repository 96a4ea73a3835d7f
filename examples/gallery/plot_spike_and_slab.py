"""
Spike and slab: which measurements matter for diabetes?
=======================================================

Ten measurements of 442 patients, and how far their diabetes had progressed a year later. Which of the ten are needed
to predict that? And would we notice if some of them were pure noise?
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_diabetes

import legrad
from legrad.sklearn import SpikeSlabRegressor

# %%
# The data
# --------
# Real data, from scikit-learn. Three columns that are known to be noise are added: real measurements, shuffled among
# the patients.

rng = np.random.default_rng(0)
diabetes = load_diabetes(as_frame=True)
X = diabetes.data.copy()
for name in ("bmi", "bp", "s5"):
    X[f"{name}, shuffled"] = rng.permutation(X[name])
X = (X - X.mean()) / X.std()
y = np.asarray((diabetes.target - diabetes.target.mean()) / diabetes.target.std())

# %%
# The model
# ---------
# Each measurement is in the regression or not. ``X`` is a data frame, whose column names would appear in
# ``result.summary(key)``.


def model(X, y=None):
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.3))
        slope = numpyro.sample("slope", dist.Normal(0.0, 0.5))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ (included * slope), noise), obs=y)


result = legrad.fit(model, args=(X, y), key=0)
print(result.method)
print(result.status)

# %%
# The warning should be taken seriously, and below we see why.
#
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2)
print("\n".join(str(diagnosis).splitlines()[:8]))

# %%
# It is not. The blood values s1 to s4 are different measures of cholesterol, and nearly determine each other. Several
# subsets of them predict about equally well, each a mode of its own, and the guide has settled in one.
#
# Thirteen columns have 8,192 subsets, few enough to compute the truth: given a subset and the noise, the slopes can
# be integrated in closed form, and the noise is summed over a grid.

A, target = X.to_numpy(), y
subsets = (np.arange(2**13)[:, None] >> np.arange(13)) & 1
log_p = []
for noise in np.linspace(0.6, 0.82, 12):
    gram = subsets[:, :, None] * (A.T @ A) * subsets[:, None] * 0.5**2 / noise**2 + np.eye(13)
    b = subsets * (A.T @ target)
    fitted = (b * np.linalg.solve(gram, b[:, :, None])[:, :, 0]).sum(1) * 0.5**2 / noise**4
    likelihood = 0.5 * fitted - 0.5 * np.linalg.slogdet(gram)[1] - 0.5 * target @ target / noise**2
    prior = subsets @ np.full(13, np.log(0.3)) + (1 - subsets) @ np.full(13, np.log(0.7))
    log_p.append(likelihood + prior - len(target) * np.log(noise) - 0.5 * noise**2)
weight = np.exp(np.array(log_p) - np.max(log_p)).sum(0)
exact = weight @ subsets / weight.sum()

# %%
# For more columns than that, :class:`legrad.sklearn.SpikeSlabRegressor` integrates the slopes in the same way, draws
# subsets from a guide with several starts, and weighs them.

regressor = SpikeSlabRegressor(prior_inclusion=0.3, slab_scale=0.5, random_state=0).fit(X, y)
print(regressor.status_)

# %%
# The answer
# ----------

probability = np.asarray(result.sample(1, 4000)["included"]).mean(0)
weighed = regressor.inclusion_probabilities_
shuffled = np.array(["shuffled" in name for name in X.columns])

fig, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
place = np.arange(X.shape[1])
ax.bar(place - 0.27, exact, 0.26, color="0.3", label="exact")
ax.bar(place, weighed, 0.26, color="C0", label="SpikeSlabRegressor")
ax.bar(place + 0.27, probability, 0.26, color="C1", label="fit of the model above")
ax.axhline(0.3, color="k", ls=":", lw=1)
ax.set(ylabel="P(included); dotted: prior", ylim=(0, 1.02), xticks=place)
ax.set_xticklabels([name.replace(", ", ",\n") for name in X.columns], fontsize=8.5)
fig.legend(loc="outside upper center", ncols=3, frameon=False)

# %%

tied = X.columns.isin(["s1", "s2", "s3", "s4"])
error, error_tied = np.abs(probability - exact)[~tied].max(), np.abs(probability - exact)[tied].max()
some = weight[subsets[:, tied].any(1)].sum() / weight.sum()
error_weighed = np.abs(weighed - exact).max()
print(f"nearly certain: {', '.join(X.columns[exact > 0.9])}")
print(f"at least one of s1 to s4: {some:.3f}")
print(f"the largest probability of a shuffled column: {exact[shuffled].max():.2f}")
print(f"largest error of the fit: {error_tied:.2f} for s1 to s4, {error:.2f} for the others")
print(f"largest error of SpikeSlabRegressor: {error_weighed:.2f}")

# %%
# Sex, body mass index, blood pressure and s5 are needed; so is some measure of cholesterol, but the data do not say
# which. The plain fit gets the first part right; on the second it is sure of one answer where there are several. Most
# of the running time is the steps of that fit.
#
# What the fit cannot say
# -----------------------
# That a measurement is not needed does not mean that it has nothing to do with the disease: another one may stand
# for it. And nothing here is about causes.
