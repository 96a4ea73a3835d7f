"""
Mixture: can three species be told apart without labels?
========================================================

Somebody measured the length and width of the petals of 150 irises and lost the labels. Can the three species be
recovered, when neither their shares nor their means nor their spreads are known?
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_iris

import legrad

iris = load_iris()
petals, species = iris.data[:, 2:], iris.target

# %%
# The model
# ---------
# A mixture of three pairs of Normals with unknown weights, means and standard deviations. ``z`` is the species of
# each flower.


def model(y, K=3):
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("components", K):
        mean = numpyro.sample("mean", dist.Normal(3.0, 3.0).expand([2]).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with numpyro.plate("flowers", len(y)):
        z = numpyro.sample("z", dist.Categorical(weight))
        numpyro.sample("y", dist.Normal(mean[z], sd[z]).to_event(1), obs=y)


result = legrad.fit(model, args=(petals,), key=0)
print(result.method)

# %%
# The labels of the components are arbitrary: any order gives the same density. The fit keeps to one order, which is
# what we want here; sorted by their means, the components can be named.

draws = {name: np.asarray(values) for name, values in result.sample(1, 1000).items()}
order = np.argsort(draws["mean"][:, :, 0], axis=1)
weight = np.take_along_axis(draws["weight"], order, 1)
mean, sd = (np.take_along_axis(draws[name], order[:, :, None], 1) for name in ("mean", "sd"))
rank = np.argsort(order, axis=1)  # of each label
z = np.take_along_axis(rank, draws["z"], 1)
probability = np.stack([(z == k).mean(0) for k in range(3)], 1)

# %%
# The answer
# ----------

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True, sharey=True, layout="constrained")
turn = np.linspace(0, 2 * np.pi, 100)
for k, name in enumerate(iris.target_names):
    left.scatter(*petals[species == k].T, s=14, color=f"C{k}", label=name)
    for radius in (1, 2):
        (x, y), (dx, dy) = mean[:, k].mean(0), radius * sd[:, k].mean(0)
        right.plot(x + dx * np.cos(turn), y + dy * np.sin(turn), color=f"C{k}", lw=1)
right.scatter(*petals.T, s=14, c=probability @ np.array([plt.cm.tab10(k)[:3] for k in range(3)]))
left.set(xlabel="petal length in cm", ylabel="petal width in cm", title="species (not shown to the fit)")
right.set(xlabel="petal length in cm", title="fit: colours mixed by probability, 1 and 2 sds")
left.legend(frameon=False, loc="upper left")

# %%
# The true species say how good this is:

found = probability.argmax(1)
accuracy = (found == species).mean()
sure = probability.max(1) > 0.9
accuracy_when_sure = (found == species)[sure].mean()
print(f"{accuracy:.0%} of the flowers are put into their species")
print(f"{accuracy_when_sure:.0%} of the {sure.sum()} flowers about which the fit is at least 90% sure")
for k, name in enumerate(iris.target_names):
    mine, m, s = petals[species == k, 0], mean[:, k, 0], sd[:, k, 0]
    print(
        f"{name:<10}  length {m.mean():.2f} ± {m.std():.2f} (in the sample {mine.mean():.2f}),  "
        f"sd {s.mean():.2f} ± {s.std():.2f} ({mine.std():.2f}),  share {weight[:, k].mean():.2f} (0.33)"
    )

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2)
print(diagnosis)

# %%
# The 150 labels are summed out exactly, one at a time, so the guide has only 14 numbers to describe. Most of the
# running time is compiling.
#
# What the fit cannot say
# -----------------------
# The number of components was given, and length and width are assumed independent within a species, which they are
# not quite. Where two species overlap, no method can tell the flowers apart by these two numbers: hence the mixed
# colours.
