"""
Hidden Markov model: when was the animal active?
================================================

A collar counts an animal's movements in every ten minutes. The animal rests or forages; nobody sees which. When
did it forage, how long does a spell of foraging last, and does it matter how the model is written?
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density

import legrad

# %%
# The data
# --------
# Simulated, so that the truth is known: 300 counts, with rates of 2 and 9, and probabilities of 0.95 and 0.88 of
# staying in a state.

rng = np.random.default_rng(0)
true_rate, true_stay = np.array([2.0, 9.0]), np.array([0.95, 0.88])
state = np.zeros(300, int)
for t in range(1, len(state)):
    stays = rng.random() < true_stay[state[t - 1]]
    state[t] = state[t - 1] if stays else 1 - state[t - 1]
y = rng.poisson(true_rate[state])

# %%
# The model, with ``scan``
# ------------------------
# Two positive increments put the rates in order, so the states cannot swap places.


def parameters():
    stay = numpyro.sample("stay", dist.Beta(8.0, 2.0).expand([2]).to_event(1))
    step = numpyro.sample("step", dist.Exponential(0.2).expand([2]).to_event(1))
    rate = numpyro.deterministic("rate", jnp.cumsum(step))
    moves = jnp.stack([jnp.stack([stay[0], 1 - stay[0]]), jnp.stack([1 - stay[1], stay[1]])])
    return moves, rate


def model(y):
    moves, rate = parameters()

    def step(z, seen):
        z = numpyro.sample("z", dist.Categorical(moves[z]))
        numpyro.sample("y", dist.Poisson(rate[z]), obs=seen)
        return z, None

    scan(step, 0, y)


result = legrad.fit(model, args=(y,), key=0)
print(result.method)

# %%
# The answer
# ----------
# The states were summed out by the forward recursion. ``sample`` draws them back, jointly: each row is a whole path.

draws = {name: np.asarray(values) for name, values in result.sample(1, 1000).items()}
active = draws["z"].mean(0)
hours = np.arange(len(y)) / 6

fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
top.bar(hours, y, width=1 / 6, color="0.6")
top.set_ylabel("movements in ten minutes")
bottom.fill_between(hours, state, step="mid", color="C1", alpha=0.35, label="truth")
bottom.plot(hours, active, color="C0", label="P(forages | counts)")
bottom.set(xlabel="hours", ylabel="forages", ylim=(-0.03, 1.03))
fig.legend(loc="outside upper right", ncols=2, frameon=False)

# %%

right = ((active > 0.5) == state).mean()
spell = 10 / (1 - draws["stay"][:, 1])
rate = draws["step"].cumsum(1)
print(f"{right:.0%} of the states are right")
print(f"rates {rate.mean(0).round(1)} ± {rate.std(0).round(1)}; true: {true_rate}")
print(f"stays with probability {draws['stay'].mean(0).round(3)} ± {draws['stay'].std(0).round(3)}; true: {true_stay}")
print(
    f"a spell of foraging lasts {np.median(spell):.0f} minutes"
    f" (90% interval {np.quantile(spell, [0.05, 0.95]).round()})"
)

# %%
# Is the fit right?
# -----------------

diagnosis = result.diagnose(2, n=4000)
print(diagnosis)

# %%
# The same model as a loop
# ------------------------
# People who come from other libraries often write a Python loop, with a site for each time. That works too:
# ``legrad.fit(loop, args=(y,), key=0)`` is the same call. But the program, and the time to compile it, grow with
# every step, so prefer ``scan`` for more than a few dozen steps. The first ten counts show that both forms give the
# same density, with the states summed out.


def loop(y):
    moves, rate = parameters()
    z = 0
    for t in range(len(y)):
        z = numpyro.sample(f"z{t}", dist.Categorical(moves[z]))
        numpyro.sample(f"y{t}", dist.Poisson(rate[z]), obs=y[t])


at = {"stay": jnp.array([0.9, 0.8]), "step": jnp.array([2.0, 6.0])}
from_scan, _ = log_density(legrad.marginalize(model), (y[:10],), {}, at)
from_loop, _ = log_density(legrad.marginalize(loop), (y[:10],), {}, at)
print(f"log-density of ten counts: scan {from_scan:.4f}, loop {from_loop:.4f}")

# %%
# What the fit cannot say
# -----------------------
# That there are two states, and that spells have geometric lengths, are assumptions. Where a probability is near one
# half, the state is not known; and the most likely states of all times together need not be a likely path: use the
# joint draws for questions about paths.
