"""Curves of a running engine: samples as things change, thinned as they grow old."""

from __future__ import annotations

from .pictures import Curves, Sample, Totals

#: how many points are kept; half of them go when there are more
_MOST = 2000
#: between two points, in seconds; doubles with every thinning
_FIRST_STEP_S = 1.0


class LiveCurves:
    """Utilization, fragmentation and queue over time. O(1) amortised per sample."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._step = _FIRST_STEP_S

    def add(self, at: float, totals: Totals, waiting: int) -> Sample:
        """Take a sample. It takes the place of the last one, where that is too close to the one before it."""
        while self._samples and self._samples[-1].at > at:  # the clock was set back
            self._samples.pop()
        gpus = max(1, totals.gpus)
        sample = Sample(
            at=at,
            guaranteed=totals.guaranteed / gpus,
            opportunistic=totals.opportunistic / gpus,
            fragmentation=totals.fragmentation,
            waiting=waiting,
        )
        if len(self._samples) > 1 and at - self._samples[-2].at < self._step:
            self._samples[-1] = sample
        else:
            self._samples.append(sample)
        if len(self._samples) > _MOST:
            del self._samples[::2]
            self._step *= 2
        return sample

    def shown(self) -> Curves:
        """All of them, as lists."""
        return Curves.model_validate(
            {name: [getattr(sample, name) for sample in self._samples] for name in Sample.model_fields}
        )
