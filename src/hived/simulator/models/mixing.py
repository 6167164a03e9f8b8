"""A mix of models for the jobs of a trace that name none: ``cv=10,nlp=60,speech=30`` (Gandiva, OSDI'18, 6.4)."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from ...errors import ModelError
from ...spec.document import did_you_mean
from ..traces import TraceJob
from ..traces.fields import shown
from .table import Models


def assign_models(
    jobs: Sequence[TraceJob], mix: str | Mapping[str, float], seed: int, models: Models | None = None
) -> tuple[TraceJob, ...]:
    """``jobs``, with a model for each that has none, drawn with the weights of ``mix``: names of ``models``. O(jobs).

    ``mix`` is a text such as ``cv=10,nlp=60,speech=30``, or weights by name; ``models`` defaults to those here. The
    draw is a hash of seed and name of the job: the same on every machine, whatever other jobs the trace has, and
    independent of all other draws. Raises :class:`~hived.errors.ModelError` for a mix that cannot be read, a name that
    is not in the table, or a weight that is negative, not finite, or the only one and 0.
    """
    weights = read_mix(mix, models or Models.load())
    names = sorted(weights)  # the same models for the same mix in another order
    limits = list(accumulate(weights[name] for name in names))
    last = len(names) - 1
    return tuple(
        [
            job if job.model else job._replace(model=names[min(bisect_right(limits, draw * limits[-1]), last)])
            for job, draw in ((job, 0.0 if job.model else _draw(seed, job.job_id)) for job in jobs)
        ]
    )


def read_mix(mix: str | Mapping[str, float], models: Models) -> dict[str, float]:
    """The weights above 0 of a mix, by name. Raises :class:`~hived.errors.ModelError` as :func:`assign_models`."""
    weights = _parsed(mix) if isinstance(mix, str) else dict(mix)
    for name, weight in weights.items():
        if name not in models:
            known = [model.model for model in models]
            raise ModelError(
                f"mix of models: {shown(name)} is not in {models.file}{did_you_mean(name, known)}: "
                f"give names of {', '.join(known)}"
            )
        if not 0 <= weight < math.inf:
            raise ModelError(f"mix of models: the weight of {name} is {weight:g}: give a finite number, 0 or more")
    weights = {name: weight for name, weight in weights.items() if weight}
    if not weights:
        raise ModelError("mix of models: no weight is above 0: give at least one, for example cv=10,nlp=60,speech=30")
    return weights


def _parsed(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = (word.strip() for word in part.rpartition("="))
        try:
            value = float(weight)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ModelError(f"mix of models: {shown(part)}: give NAME=WEIGHT, for example cv=10,nlp=60,speech=30")
        if name in weights:
            raise ModelError(f"mix of models: {name} is there twice: give it one weight")
        weights[name] = value
    return weights


def _draw(seed: int, job_id: str) -> float:
    """A number from 0 to 1 for a job."""
    digest = hashlib.blake2b(f"model:{seed}:{job_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64
