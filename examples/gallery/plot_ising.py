"""
Ising model: what did the image look like before the noise?
===========================================================

A handwritten digit in black and white has lost an eighth of its pixels to flips. Neighbouring pixels are mostly
equal: is that enough to restore the image, and to say which pixels are uncertain?
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

import legrad

# %%
# The data
# --------
# A digit of scikit-learn's collection, enlarged to 24 by 24 pixels and made black and white; then each pixel is
# flipped with a probability of 1/8.

rng = np.random.default_rng(0)
flip = 0.125
clean = (zoom(load_digits().images[3], 3, order=1) > 6).astype(int)
noisy = np.where(rng.random(clean.shape) < flip, 1 - clean, clean)

# %%
# The model
# ---------
# An Ising prior: each pair of equal neighbours adds ``coupling`` to the log-density. Its normalizing constant is
# unknown, but does not matter as long as the coupling is fixed. All 576 pixels depend on each other, with 2 to the
# power of 576 joint values. The guide has one independent factor for each pixel, the mean field of physics.

coupling = 1.2


def model(noisy):
    with numpyro.plate("rows", noisy.shape[0], dim=-2), numpyro.plate("columns", noisy.shape[1], dim=-1):
        x = numpyro.sample("x", dist.Bernoulli(0.5))
        numpyro.sample("pixel", dist.Bernoulli(jnp.where(x == 1, 1 - flip, flip)), obs=noisy)
    spin = 2.0 * x - 1.0
    equal = (spin[1:] * spin[:-1]).sum() + (spin[:, 1:] * spin[:, :-1]).sum()
    numpyro.factor("neighbours", 0.5 * coupling * equal)


guide = legrad.MeanField(model)
result = legrad.fit(model, guide, args=(noisy,), key=0, stop="auto")
print(result.method)
print(result.status)

# %%
# The answer
# ----------

probability = np.asarray(result.sample(1, 2000)["x"]).mean(0)
restored = (probability > 0.5).astype(int)

fig, axes = plt.subplots(1, 4, figsize=(11, 3.1), layout="constrained")
pictures = {"clean": clean, "noisy": noisy, "P(pixel is white)": probability, "restored": restored}
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
    ax.set(title=title, xticks=[], yticks=[])

# %%

wrong_before, wrong_after = int((noisy != clean).sum()), int((restored != clean).sum())
print(f"wrong pixels: {wrong_before} before, {wrong_after} after")
unsure = (probability > 0.1) & (probability < 0.9)
wrong = restored != clean
print(
    f"{unsure.sum()} pixels are uncertain (10% to 90%);"
    f" {(wrong & unsure).sum()} of the {wrong_after} wrong ones are among them"
)

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2)
print("\n".join(str(diagnosis).splitlines()[:8]))

# %%
# One pixel touches only its four neighbours, and LeGrad computes no more than that for each of the 576 pixels, so a
# step costs about as much as evaluating the model a few times; most of the running time is compiling and the steps
# needed.
#
# What the fit cannot say
# -----------------------
# Coupling and noise were given. A guide whose pixels are independent is too sure of itself: it restores the image
# well, but k-hat says not to take joint statements about many pixels from it.
