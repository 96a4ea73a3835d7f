"""
Noisy-or: which diseases explain the symptoms?
==============================================

A network of 20 diseases and 40 symptoms: each disease causes some symptoms, with known probabilities, and a symptom
appears if any of its causes fires. A patient has a few of the symptoms. Which diseases do they have?
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
# A simulated network, and one patient.

rng = np.random.default_rng(3)
D, S = 20, 40
prior = rng.uniform(0.02, 0.15, D)
link = rng.uniform(0.3, 0.9, (D, S)) * (rng.random((D, S)) < 0.15)
leak = 0.02
ill = np.zeros(D, bool)
ill[[4, 11, 17]] = True
symptoms = (rng.random(S) > (1 - leak) * np.prod(1 - link * ill[:, None], 0)).astype(int)
print(f"the patient has {symptoms.sum()} of {S} symptoms; the true diseases are {np.flatnonzero(ill)}")

# %%
# The model
# ---------
# P(no symptom) is a product over diseases, so its logarithm is linear in them.

log_miss = np.log1p(-link)
log_miss32, prior32 = jnp.asarray(log_miss, jnp.float32), jnp.asarray(prior, jnp.float32)


def model(symptoms):
    with numpyro.plate("diseases", D):
        z = numpyro.sample("z", dist.Bernoulli(prior32))
    p_none = (1 - leak) * jnp.exp(z @ log_miss32)
    with numpyro.plate("symptoms", S):
        numpyro.sample("symptom", dist.Bernoulli(1 - p_none), obs=symptoms)


guide = legrad.MeanField(model)
result = legrad.fit(model, guide, args=(symptoms,), key=0, stop="auto")
print(result.method)

# %%
# Diseases compete to explain a symptom, so they depend on each other given the symptoms ("explaining away"), and
# their joint values are too many for the sum that ``fit`` makes by default. So the guide is a mean field, with a
# factor for each disease, fitted by local expectation gradients.
#
# The answer
# ----------
# A million joint values are few enough to compute the truth by brute force, for comparison.

values = np.array(np.meshgrid(*[[0, 1]] * 10, indexing="ij")).reshape(10, -1).T
log_joint = np.empty((1024, 1024))
for i, head in enumerate(values):
    z = np.concatenate([np.tile(head, (1024, 1)), values], 1)
    none = (1 - leak) * np.exp(z @ log_miss)
    likelihood = np.where(symptoms, np.log1p(-none), np.log(none)).sum(1)
    log_joint[i] = likelihood + z @ np.log(prior) + (1 - z) @ np.log1p(-prior)
weight = np.exp(log_joint - log_joint.max())
weight /= weight.sum()
exact = np.concatenate([weight.sum(1) @ values, weight.sum(0) @ values])

draws = np.asarray(result.sample(1, 4000)["z"])
fitted = draws.mean(0)
error = np.abs(fitted - exact).max()

fig, ax = plt.subplots(figsize=(9, 3.8), layout="constrained")
place = np.arange(D)
ax.bar(place - 0.2, exact, 0.4, color="0.6", label="exact")
ax.bar(place + 0.2, fitted, 0.4, color="C0", label="fit")
ax.plot(place, prior, "k_", ms=14, label="before seeing symptoms")
ax.set(xlabel="disease (the true ones in bold)", ylabel="probability", xticks=place, ylim=(0, 1.02))
for tick, is_ill in zip(ax.get_xticklabels(), ill, strict=True):
    tick.set_fontweight("bold" if is_ill else "normal")
fig.legend(loc="outside upper center", ncols=3, frameon=False)

# %%

print(f"largest difference to the exact probability: {error:.3f}")
for d in np.argsort(-fitted)[:6]:
    print(
        f"disease {d:>2}: {prior[d]:.2f} before, {fitted[d]:.2f} after (exact {exact[d]:.2f})"
        f"{', true' if ill[d] else ''}"
    )

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2)
print(diagnosis)

# %%
# What the diagnosis flags is a disease that is practically ruled out. Its probability is a little too high, which is
# much in units of its tiny standard deviation; the largest error of any probability is printed above.
#
# What the fit cannot say
# -----------------------
# The network is given: diseases that it does not contain cannot be found. Where two diseases explain the same
# symptoms equally well, the posterior has several modes, and a guide may keep to one of them; the diagnosis and the
# comparison above would show that.
