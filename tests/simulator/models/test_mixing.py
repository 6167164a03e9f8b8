"""Models for the jobs of a trace that name none."""

from __future__ import annotations

from collections import Counter

import pytest

from hived.errors import ModelError
from hived.simulator.models import Models, assign_models
from hived.simulator.traces import TraceJob

from ..traces.helpers import job

MIX = "cv=10,nlp=60,speech=30"
JOBS = [job(f"job-{number}") for number in range(2_000)]


def names(jobs: tuple[TraceJob, ...]) -> list[str]:
    return [job.model for job in jobs]


def test_models_in_proportion_to_the_mix() -> None:
    drawn = assign_models(JOBS, MIX, seed=1)
    shares = {name: number / len(JOBS) for name, number in Counter(names(drawn)).items()}
    assert shares == pytest.approx({"cv": 0.1, "nlp": 0.6, "speech": 0.3}, abs=0.04)
    assert [job._replace(model="") for job in drawn] == JOBS


def test_a_job_that_names_a_model_keeps_it() -> None:
    jobs = [job("a")._replace(model="mine"), job("b")]
    assert names(assign_models(jobs, {"VAE": 1}, seed=1)) == ["mine", "VAE"]


def test_the_draw_is_the_same_everywhere() -> None:
    assert names(assign_models(JOBS[:6], MIX, seed=7)) == names(assign_models(JOBS, MIX, seed=7))[:6]
    assert names(assign_models(JOBS[::-1], MIX, seed=7))[::-1] == names(assign_models(JOBS, MIX, seed=7))
    assert names(assign_models(JOBS[:6], MIX, seed=7)) == ["speech", "speech", "nlp", "nlp", "nlp", "nlp"]


def test_the_form_of_the_mix_does_not_matter() -> None:
    drawn = assign_models(JOBS, MIX, seed=3)
    assert assign_models(JOBS, " speech = 0.3, nlp=0.6,cv=.1,VAE=0", seed=3) == drawn
    assert assign_models(JOBS, {"nlp": 6, "cv": 1, "speech": 3}, seed=3) == drawn
    assert assign_models(JOBS, MIX, seed=4) != drawn


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("", "'': give NAME=WEIGHT, for example cv=10,nlp=60,speech=30"),
        ("cv", "'cv': give NAME=WEIGHT"),
        ("cv=ten", "'cv=ten': give NAME=WEIGHT"),
        ("cv=1,cv=2", "cv is there twice: give it one weight"),
        ("spech=3", "'spech' is not in models.csv (did you mean `speech`?): give names of VAE, SR"),
        ("cv=-1", "the weight of cv is -1: give a finite number, 0 or more"),
        ("cv=inf", "the weight of cv is inf: give a finite number, 0 or more"),
        ("cv=0,nlp=0", "no weight is above 0: give at least one"),
    ],
)
def test_a_wrong_mix_is_refused(mix: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        assign_models(JOBS, mix, seed=1)
    assert str(error.value).startswith(f"mix of models: {message}")
    assert "\n" not in str(error.value)


def test_names_are_those_of_the_table_given() -> None:
    one = Models([Models.load().of("*")], "mine.csv")
    assert names(assign_models(JOBS[:1], "*=1", seed=1, models=one)) == ["*"]
    with pytest.raises(ModelError, match=r"'cv' is not in mine\.csv: give names of \*$"):
        assign_models(JOBS, MIX, seed=1, models=one)
