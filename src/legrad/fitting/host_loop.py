"""The loop around the compiled steps: it watches the clock, decides when to stop, calls back and writes checkpoints.

Everything here happens between two steps. Decisions that affect the result are made at steps that do not depend on
the clock, so that a fit that was killed and resumed ends like one that was not.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from tqdm.auto import tqdm

from legrad.fitting.callbacks import Callback, Snapshot
from legrad.fitting.checkpoint import Checkpoint, Progress
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.data import DataError
from legrad.fitting.processes import agreed, clock, on_host, several
from legrad.fitting.stopping import Stopping
from legrad.fitting.telling import is_hidden, quiet

_CHUNK_SECONDS = 0.5  # how long compiled code runs before the loop looks at the clock again
_CHUNK_STEPS, _LONGEST = 16, 4.0  # a chunk of this many steps may take this long: each call allocates the state anew
_CHECKPOINT_SECONDS = 30.0
_RECENT = 1000
INTERRUPTED = "it was interrupted"
LOST = "the checkpoint could not be written"


@dataclass
class HostLoop:
    """The loop of one fit.

    Attributes:
        program: the compiled steps.
        steps: the maximum number of steps.
        seconds: the maximum running time.
        stoppings: one stopping rule for each start, or none.
        checkpoint: the checkpoint of the fit, if there is one.
        checkpoint_every: steps between two checkpoints; if None, one is written every half minute.
        callbacks: the functions to call with a snapshot.
        callback_every: steps between two calls.
        progress: whether to show a progress bar; a string is its label.
    """

    program: CompiledLoop
    steps: int
    seconds: float
    stoppings: Sequence[Stopping]
    checkpoint: Checkpoint | None
    checkpoint_every: int | None
    callbacks: Sequence[Callback]
    callback_every: int
    progress: bool | str | None

    def run(self, now: Progress) -> tuple[Progress, str]:
        """Continue from `now`; return where the fit ended, and what ended it if not the fit itself."""
        self._ran, self._chunk, self._first, self._counting = 0.0, 1, True, False
        self._saved = now.at
        self._called = now.at - now.at % self.callback_every
        self._saved_at = clock()
        fresh = now.at == 0
        ended = ""
        with self._bar(now) as bar:
            try:
                while True:
                    now = self._look(now)
                    ended = self._tell(now, bar)
                    if ended or self._finished(now):
                        break
                    now = self._advance(now)
            except (KeyboardInterrupt, DataError) as error:
                if several():  # the other processes go on: ending the fit takes all of them
                    raise
                interrupted = isinstance(error, KeyboardInterrupt)
                ended = INTERRUPTED if interrupted else f"the data could not be read ({error})"
            except BaseException:  # a callback raised: keep the progress so far
                if self.checkpoint is not None and now.at != self._saved and not several():
                    self._save(now)
                raise
        if self.checkpoint is not None and (now.at != self._saved or fresh) and not ended.startswith(LOST):
            ended = self._save(now) or ended
        return now, ended

    # --- the parts of a round ------------------------------------------------------------------------------------

    def _look(self, now: Progress) -> Progress:
        """Apply the stopping rule of each start that is due at this step."""
        limits, state = now.limits.copy(), now.state
        before = [stopping.record for stopping in self.stoppings]
        try:
            for i, stopping in enumerate(self.stoppings):
                if limits[i] < now.at or stopping.next_look != now.at:
                    continue
                loaded = self.program.feed.load(now.at - 1)
                one = stopping.look(now.at, self.program.take(state, i), loaded)
                state = self.program.put(state, i, one)
                if stopping.done:
                    limits[i] = now.at
        except BaseException:
            for stopping, record in zip(self.stoppings, before, strict=True):
                stopping.record = record
            raise
        records = [stopping.record for stopping in self.stoppings]
        return Progress(state, now.at, limits, now.failures, records, now.clock)

    def _tell(self, now: Progress, bar: Any) -> str:
        """Update the bar, call the callbacks, write a checkpoint; return the reason if one of them ends the fit."""
        if not bar.disable:
            self._show(now, bar)
        ended = ""
        if self.callbacks and now.at % self.callback_every == 0 and now.at > self._called:
            snapshot = self._snapshot(now)
            self._called = now.at
            answers = [callback(snapshot) for callback in self.callbacks]
            said = any(np.ndim(a) == 0 and np.asarray(a).dtype == bool and bool(a) for a in answers)
            if bool(agreed(said)):
                ended = "a callback ended it"
        if self.checkpoint is not None and now.at > self._saved:
            due = clock() - self._saved_at > _CHECKPOINT_SECONDS
            if now.at % self.checkpoint_every == 0 if self.checkpoint_every else due:
                ended = self._save(now) or ended
        return ended

    def _finished(self, now: Progress) -> bool:
        return now.at >= self.steps or bool(np.all(now.limits <= now.at)) or self._ran >= self.seconds

    def _advance(self, now: Progress) -> Progress:
        feed, at = self.program.feed, now.at
        target = min([at + self._chunk, self.steps, at + feed.left(at), *self._appointments(at, now.limits)])
        ends = np.minimum(int(target), now.limits)
        loaded = feed.load(at)
        begun = clock()
        state, failed = self.program.advance(now.state, ends, loaded)
        state = jax.block_until_ready(state)
        took = clock() - begun
        limits = now.limits.copy()
        for start, step in failed.items():
            limits[start] = step
        if not self._first:  # the time of the first chunk is mostly compilation
            self._ran += took
        self._chunk = _next_chunk(self._chunk, took / (target - at), self._first, self.seconds - self._ran)
        self._first = False
        done = min(int(target), max(int(limits.max()), at))  # less than the target where every start has failed
        times = [*now.clock, (float(done), now.clock[-1][1] + took)]
        return Progress(state, done, limits, now.failures | failed, now.records, times)

    def _appointments(self, at: int, limits: np.ndarray) -> list[float]:
        """Return the next steps at which a stopping rule, a callback or a checkpoint is due."""
        found = [s.next_look for i, s in enumerate(self.stoppings) if limits[i] > at]
        for every in (self.callback_every if self.callbacks else None, self.checkpoint_every):
            if every:
                found.append(at + every - at % every)
        return found

    def _save(self, now: Progress) -> str:
        assert self.checkpoint is not None
        number, why = 0, ""
        try:
            self.checkpoint.save(now)
        except OSError as error:
            number, why = error.errno or -1, str(error)
        number = int(agreed(number))
        if number:
            why = "the disk is full" if number in (errno.ENOSPC, errno.EDQUOT) else why
            whole = self.checkpoint.path.exists()
            before = f"the one of step {self._saved} is whole" if whole else "there is no earlier one"
            folder = self.checkpoint.path.parent
            return f"{LOST} to '{folder}' ({why}); {before}. Make room and run the same call again"
        self._saved, self._saved_at = now.at, clock()
        return ""

    # --- what people see -----------------------------------------------------------------------------------------

    def _bar(self, now: Progress) -> Any:
        quiet()
        hide = is_hidden(self.progress)
        label = self.progress if isinstance(self.progress, str) else None
        timed = not math.isinf(self.seconds)
        form = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}" if timed else None
        total = self.seconds if timed else None if self.stoppings else self.steps
        return tqdm(
            total=total, initial=0 if timed else now.at, disable=hide, unit="step", desc=label, bar_format=form
        )

    def _show(self, now: Progress, bar: Any) -> None:
        timed = not math.isinf(self.seconds)
        best, elbo = self._best(now, 100)
        words = [f"step {now.at:,}"] if timed and now.at else []
        if math.isfinite(elbo):
            words.append(f"ELBO {elbo:.4g}")
        if self._first:
            words.append("compiling")
        elif self.stoppings:
            words += _phase_words(self.stoppings[best])
        bar.set_postfix_str(", ".join(words))
        if not (self._first or self._counting or timed):  # steps per second, and the time left, leave out compiling
            bar.unpause()
            bar.initial = bar.n = now.at
            bar.refresh()
            self._counting = True
        bar.update((min(self._ran, self.seconds) if timed else now.at) - bar.n)

    def _snapshot(self, now: Progress) -> Snapshot:
        width = min(_RECENT, now.at - self._called)
        best, elbo = self._best(now, width)
        one = self.program.take(now.state, best)
        done = min(now.at, int(now.limits[best]))
        noise = np.asarray(one.noise[max(0, done - width) : done])
        return Snapshot(
            step=now.at,
            seconds=now.clock[-1][1],
            elbo=elbo,
            gradient_variance=float(np.nanmean(noise)) if np.isfinite(noise).any() else math.nan,
            rate=float(one.rate),
            params=lambda: on_host(self.program.parameters.constrain(one.unconstrained)),
        )

    def _best(self, now: Progress, width: int) -> tuple[int, float]:
        """Return the start with the best mean ELBO over its last steps, and that mean."""
        recent, history = [], np.asarray(now.state.elbo)
        for i, limit in enumerate(now.limits):
            done = min(now.at, int(limit))
            elbo = self.program.take(history, i)[max(0, done - width) : done]
            sound = len(elbo) and i not in now.failures
            recent.append(float(np.mean(elbo)) if sound else -math.inf)
        best = int(np.argmax(recent))
        return best, recent[best]


def _phase_words(stopping: Stopping) -> list[str]:
    """Say in which phase a fit is, and how far the last look found it from its tolerance."""
    phases, settings = stopping.record.phases, stopping.settings
    words = [f"phase {len(phases)} (step size ×{phases[-1].rate:.3g})"]
    looked = [phase for phase in phases[-2:] if math.isfinite(phase.rhat)]
    if not looked:
        return words
    last = looked[-1]
    if math.isinf(last.error):
        return [*words, f"not stationary (R-hat {last.rhat:.2f}, limit {settings.rhat:g})"]
    found = [f"error {last.error:.2g}"] + ([f"moved {last.moved:.2g}"] if math.isfinite(last.moved) else [])
    return [*words, f"{', '.join(found)} (tolerance {settings.tolerance:g})"]


def _next_chunk(chunk: int, each: float, first: bool, left: float) -> int:
    """Return the number of steps of the next chunk: half a second's, at least a few, at most what time allows."""
    if first:
        return 2 if math.isinf(left) else 1  # how long a step takes is not known yet
    each = max(each, 1e-9)
    wanted = max(_CHUNK_SECONDS / each, min(_CHUNK_STEPS, _LONGEST / each))
    chunk = min(4 * chunk, max(1, int(wanted)))
    return max(1, min(chunk, int(min(left, 1e9) / each)))
