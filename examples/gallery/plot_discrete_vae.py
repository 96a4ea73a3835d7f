"""
Discrete-latent VAE in Flax: can an image of a digit be kept in 16 bits?
========================================================================

A variational autoencoder compresses images into a code and restores them. Here the code has 16 bits, so that it can
be stored and compared exactly. Bits have no gradient; local expectation gradients need none, and the networks are
ordinary Flax modules.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.contrib.module import flax_module
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

import legrad

# %%
# The data
# --------
# 1,797 images of 8 by 8 pixels from scikit-learn, made black and white: 64 bits each. 1,500 are used to train, 297
# to test.

digits = load_digits()
images = (digits.data > 8).astype(np.float32)
order = np.random.default_rng(0).permutation(len(images))
train, test = images[order[:1500]], images[order[1500:]]
label_train, label_test = digits.target[order[:1500]], digits.target[order[1500:]]

# %%
# The model
# ---------
# The decoder is a network from 16 bits to 64 pixels, the encoder one from 64 pixels to the probabilities of the bits.
# Both are parts of plain NumPyro functions: ``flax_module`` registers their weights as parameters. Each step takes 64
# images (``subsample_size``).

BITS = 16
decoder = nn.Sequential([nn.Dense(64), nn.tanh, nn.Dense(64)])
encoder = nn.Sequential([nn.Dense(64), nn.tanh, nn.Dense(BITS)])


def model(images):
    decode = flax_module("decoder", decoder, input_shape=(1, BITS))
    with numpyro.plate("images", len(images), subsample_size=64, dim=-2) as rows:
        with numpyro.plate("bits", BITS, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
        with numpyro.plate("pixels", 64, dim=-1):
            numpyro.sample("pixel", dist.Bernoulli(logits=decode(2.0 * z - 1.0)), obs=images[rows])


def guide(images):
    encode = flax_module("encoder", encoder, input_shape=(1, 64))
    with numpyro.plate("images", len(images), subsample_size=64, dim=-2) as rows, numpyro.plate("bits", BITS, dim=-1):
        numpyro.sample("z", dist.Bernoulli(logits=encode(images[rows])))


steps = 2000
optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, steps))
result = legrad.fit(model, guide, args=(jnp.asarray(train),), key=0, steps=steps, optimizer=optimizer)
print(result.status)

# %%
# The answer
# ----------
# Test images, their codes, and what the decoder makes of the codes. The last row decodes random bits.


def encode(x):
    return encoder.apply({"params": result.params["encoder$params"]}, x)


def decode(z):
    return nn.sigmoid(decoder.apply({"params": result.params["decoder$params"]}, 2.0 * z - 1.0))


code = np.asarray(encode(test) > 0, float)
restored = np.asarray(decode(code))
invented = np.asarray(decode(jax.random.bernoulli(jax.random.key(1), 0.5, (10, BITS))))

fig, axes = plt.subplots(4, 10, figsize=(10, 4.6), layout="constrained")
rows = {
    "test image": test[:10].reshape(-1, 8, 8),
    "its 16 bits": code[:10].reshape(-1, 4, 4),
    "restored from\nthe bits": restored[:10].reshape(-1, 8, 8),
    "from random bits": invented.reshape(-1, 8, 8),
}
for (name, pictures), row in zip(rows.items(), axes, strict=True):
    for ax, picture in zip(row, pictures, strict=True):
        ax.imshow(picture, cmap="Blues" if name == "its 16 bits" else "gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")

# %%
# How good is it?
# ---------------
# The share of pixels that are restored correctly; and whether the bits keep which digit it was: a classifier by the
# five nearest neighbours reads it from them.

right = ((restored > 0.5) == test).mean()
most_frequent = ((train.mean(0) > 0.5) == test).mean()
code_train = np.asarray(encode(train) > 0, float)
from_bits = KNeighborsClassifier(5).fit(code_train, label_train).score(code, label_test)
from_pixels = KNeighborsClassifier(5).fit(train, label_train).score(test, label_test)
print(f"pixels restored correctly: {right:.1%}; by the most frequent value of each pixel {most_frequent:.1%}")
print(f"digits read from the 16 bits: {from_bits:.1%}; from all 64 pixels {from_pixels:.1%}")

# %%
# Is the fit right?
# -----------------
# For a model that is trained, the questions are whether the ELBO has levelled off, and whether it holds for images
# that it was not trained on. The ELBO of the test images is computed here by hand, with 50 draws of
# the bits for each.


def elbo(x, key):
    logits = encode(x)
    z = jax.random.bernoulli(key, nn.sigmoid(logits)).astype(float)
    likelihood = dist.Bernoulli(decode(z)).log_prob(x).sum(-1)
    return (likelihood + BITS * jnp.log(0.5) - dist.Bernoulli(logits=logits).log_prob(z).sum(-1)).mean()


of_test, of_train = (
    np.mean([elbo(x, key) for key in jax.random.split(jax.random.key(2), 50)]) for x in (test, train)
)
path = [part.mean() / len(train) for part in np.array_split(result.elbo, 5)]
share = (train.sum(0) + 1) / (len(train) + 2)
independent = (test * np.log(share) + (1 - test) * np.log1p(-share)).sum(1).mean()
print("ELBO of an image, in fifths of the training:", np.round(path, 1))
print(f"at the end: {of_train:.1f} of training images, {of_test:.1f} of test images")
print(f"for comparison, log-probability of a test image with independent pixels: {independent:.1f}")

# %%
# The gap between training and test images is what the decoder has learnt by heart. Each step evaluates the decoder
# for both values of every bit of 64 images; that, and compiling, is the running time.
#
# What the fit cannot say
# -----------------------
# The encoder guesses the bits of an image independently of each other. Which bit stands for what is arbitrary and
# changes with the seed, and random bits need not form a digit.
