"""
A first fit: which features matter?
===================================

Of 8 features only three have an effect. A spike-and-slab prior gives each feature a discrete latent (is it in?) and a
continuous one (its slope). Neither a guide nor a learning rate has to be chosen.
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

rng = np.random.default_rng(0)
truth = np.zeros(8)
truth[[1, 4, 6]] = [1.5, -1.0, 0.7]
X = rng.normal(size=(100, 8))
y = X @ truth + 0.5 * rng.normal(size=100)


def model(X, y=None):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 0.5), obs=y)


# %%
# The fit, and what it says about itself.

result = legrad.fit(model, args=(X, y), key=0)
print(result.status)
print(result.diagnose(key=1))

# %%
# The probability that each feature is in. The three that have an effect are red.

draws = result.sample(2, 2000, corrected=True)
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.bar(range(8), draws["included"].mean(0), color=np.where(truth != 0, "#c0392b", "#bbbbbb"))
axes.set(xlabel="feature", ylabel="probability of being in", ylim=(0, 1.05))
axes.spines[["top", "right"]].set_visible(False)
plt.show()
