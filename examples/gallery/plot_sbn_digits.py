"""
Sigmoid belief network: what are handwritten digits made of?
============================================================

An image of a digit has 64 pixels, black or white. Can 24 hidden switches, each of which darkens or brightens some of
the pixels, explain such images: restore one from the state of its switches, and invent new ones?
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit
from sklearn.datasets import load_digits

from legrad.sklearn import SigmoidBeliefNetwork

# %%
# The data
# --------
# 1,797 images from scikit-learn, of which 1,500 are used to train and 297 to test. Pixels above half of the full
# brightness count as white.

images = (load_digits().data > 8).astype(float)
order = np.random.default_rng(0).permutation(len(images))
train, test = images[order[:1500]], images[order[1500:]]

# %%
# The model
# ---------
# Hidden units are independent coin tosses, and every pixel is a logistic regression on them. Given an image they are
# not independent any more, and there are 2 to the power of 24 joint states: too many to sum. An encoder guesses the
# state of each unit from the image, and is trained together with the network by local expectation gradients, which
# try both states of every unit.

network = SigmoidBeliefNetwork(n_components=24, max_iter=3000, random_state=0).fit(train)

# %%
# The answer
# ----------
# The upper rows show test images, and the same images restored from nothing but their hidden units. Below are the
# pixels that ten of the units switch on (red) or off (blue), those with the largest weights, and images that the
# network invented.

code = (network.transform(test) > 0.5).astype(float)
restored = expit(code @ network.components_ + network.intercept_)
invented = network.sample(10)
strongest = np.argsort(-np.abs(network.components_).sum(1))[:10]

rows = {
    "test image": test[:10],
    "restored from\n24 switches": restored[:10],
    "what ten of the\nswitches do": network.components_[strongest],
    "invented": invented,
}
fig, axes = plt.subplots(4, 10, figsize=(10, 4.6), layout="constrained")
for (name, pictures), row in zip(rows.items(), axes, strict=True):
    for ax, picture in zip(row, pictures, strict=True):
        style = (
            {"cmap": "coolwarm", "vmin": -4, "vmax": 4} if "do" in name else {"cmap": "gray", "vmin": 0, "vmax": 1}
        )
        ax.imshow(picture.reshape(8, 8), **style)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")

# %%
# How good is it?
# ---------------
# The log-probability of test images, in nats, against a model in which pixels are independent; and the share of the
# pixels that are restored correctly, against the most frequent value of each pixel. The log-probability of the
# network is a lower bound, from 200 draws of the encoder for each image.

score = network.score(test)
share = (train.sum(0) + 1) / (len(train) + 2)
independent = (test * np.log(share) + (1 - test) * np.log1p(-share)).sum(1).mean()
right = ((restored > 0.5) == test).mean()
most_frequent = ((share > 0.5) == test).mean()
print(f"log-probability of a test image: {score:.1f}; with independent pixels {independent:.1f}")
print(f"pixels restored correctly: {right:.1%}; by the most frequent value {most_frequent:.1%}")

# %%
# Is the fit right?
# -----------------
# The ELBO should have levelled off, and test images should score about as well as the training images.

on_train = network.score(train[:297])
path = [part.mean() for part in np.array_split(network.elbo_, 6)]
print("ELBO of an image, in sixths of the training:", np.round(path, 1))
print(f"log-probability: {on_train:.1f} of training images, {score:.1f} of test images")

# %%
# Most of the running time is the 3,000 steps of training.
#
# What the fit cannot say
# -----------------------
# The encoder treats the units as independent given an image, so the bound is not the best possible. Units can be
# exchanged, and another seed finds other switches that explain the images about as well: they are a code, not parts
# that are really there.
