"""A policy that is wrong: one line with its name, the job and the moment, exit code 5, and nothing written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.simulator import simulation

from .helpers import HEADER, Hived, tree

MODULE = '''\
from itertools import count
from math import inf, nan
from hived.policies import Tiresias
from hived.scheduling import Policy

COUNTER = count()

class Wrong(Tiresias):
    """Jobs change their queue, and are preempted and placed: every method is called."""
    name = "wrong"
    def __init__(self):
        super().__init__((60.0, 600.0))
    {body}

class NoPolicy:
    name = "no-policy"

class Never(Policy):
    def __init__(self):
        raise KeyError("no such file")

OBJECT = 3
'''


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test has its own module."""
    yield
    sys.modules.pop("mine", None)


def error(hived: Hived, policy: str, body: str = "", code: int = 5, trace: str = "") -> str:
    """The line that is said, after the progress; nothing is written."""
    Path("mine.py").write_text(MODULE.replace("{body}", body), encoding="utf-8")
    if trace:
        Path("trace.csv").write_text(HEADER + trace, encoding="utf-8")
    before = tree(Path.cwd())
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--no-figures", "--no-opportunistic",
                   "--policy", policy)  # fmt: skip
    assert tree(Path.cwd()) == before
    assert answer.code == code, answer
    assert answer.out == ""
    *progress, line = answer.err.splitlines()
    assert all("jobs" in other for other in progress)
    return line


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("order(self, job)", "[1]", "order gives [1]; it must give a tuple of numbers"),
        ("order(self, job)", "None", "order gives None"),
        ("order(self, job)", "(job.job,)", "'j0', which is neither"),
        ("order(self, job)", "(nan,)", "nan, which is neither"),
        ("order(self, job)", "(next(COUNTER),)", "order gives (0,), and (1,) for the same job"),
        ("order(self, job)", "(job.duration,)", "order gives (None,)"),
        ("order(self, job)", "(job.age,)", "order raises AttributeError"),
        ("order(self)", "()", "order raises TypeError"),
        ("review_after(self, job)", "0", "review_after gives 0; it must give None, or seconds above 0"),
        ("review_after(self, job)", "nan", "review_after gives nan"),
        ("review_after(self, job)", "'soon'", "review_after gives 'soon'"),
        ("rank(self, host, gpus)", "3", "rank gives 3; it must give a tuple of numbers, or None"),
        ("rank(self, host, gpus)", "('a',)", "rank gives ('a',)"),
        ("rank(self, host, gpus)", "(nan,)", "rank gives (nan,)"),
        ("rank(self, host, gpus)", "False", "rank gives False"),
        ("react(self, event)", "'suspend'", "react gives 'suspend'; it must give a Reaction"),
        ("react(self, event)", "None", "react gives None"),
        ("relax(self, job)", "'no'", "relax gives 'no'; it must give True or False"),
        ("order(self, job)", "1 / 0", "order raises ZeroDivisionError: division by zero"),
        ("review_after(self, job)", "1 / 0", "review_after raises ZeroDivisionError: division by zero"),
        ("rank(self, host, gpus)", "1 / 0", "rank raises ZeroDivisionError: division by zero"),
        ("react(self, event)", "1 / 0", "react raises ZeroDivisionError: division by zero"),
        ("relax(self, job)", "1 / 0", "relax raises ZeroDivisionError: division by zero"),
    ],
)
def test_wrong_answer(hived: Hived, folder: Path, method: str, answer: str, words: str) -> None:
    line = error(hived, "mine:Wrong", f"def {method}: return {answer}")
    assert words in line
    assert "policy wrong, job j" in line
    assert " s: " in line.partition(", at ")[2]


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("preempts = 'yes'", "preempts is 'yes'; it must be True or False"),
        ("clairvoyant = 1", "clairvoyant is 1"),
        ("patience = -1", "patience is -1; it must be a number of seconds, at least 0"),
        ("patience = nan", "patience is nan"),
        ("patience = 'long'", "patience is 'long'"),
        ("resume_s = inf", "resume_s is inf"),
        ("resume_s = None", "resume_s is None"),
        ("displaced = 'suspend'", "it must give a Reaction"),
    ],
)
def test_wrong_attribute(hived: Hived, folder: Path, attribute: str, words: str) -> None:
    assert words in error(hived, "mine:Wrong", attribute)


@pytest.mark.parametrize(
    ("policy", "code", "words"),
    [
        ("mine:NoPolicy", 5, "is no hived.scheduling.Policy; derive its class from that"),
        ("mine:OBJECT", 5, "3 is no class of policies"),
        ("mine:Never", 5, "it cannot be made: KeyError: 'no such file'"),
        ("mine:Gone", 2, "the module has no Gone"),
        ("nowhere:Any", 5, "No module named 'nowhere'"),
        ("tiresis", 2, "did you mean tiresias?"),
        ("tiresias:limit=3", 2, "no parameter 'limit'; it has limits"),
        ("fifo:speed=2", 2, "no parameter 'speed'; it has none"),
        ("tiresias:limits=9/3", 2, "must be above 0 and ascend"),
        ("tiresias:limits=soon", 2, "the limits ['soon'] must be numbers"),
        ("tiresias:limits=9/soon", 2, "the limits [9, 'soon'] must be numbers"),
        ("tiresias:limits=", 2, "parameter 'limits' has no value"),
        ("tiresias:limits=3:limits=4", 2, "parameter 'limits' is given twice"),
        ("greedy:patience=-5", 5, "patience is -5"),
        ("greedy:patience=long", 5, "patience is 'long'"),
        ("c=fifo", 2, "no tenant 'c' in spec.yaml, which has a, b"),
        ("", 2, "unknown policy ''"),
        ("a:b:c", 2, "it must be NAME, or module:Class"),
    ],
)
def test_no_policy(hived: Hived, folder: Path, policy: str, code: int, words: str) -> None:
    assert words in error(hived, policy, code=code)


def test_module_that_cannot_be_imported(hived: Hived, folder: Path) -> None:
    assert "its module cannot be imported (mine: " in error(hived, "mine:Wrong", "def order(self: return ()")
    assert "(mine: SystemExit: 3)" in error(hived, "mine:Wrong", "import sys; sys.exit(3)")


FULL = "j0,a,0,9,8,p\nj1,a,5,9,8,p\n"


@pytest.mark.parametrize(
    ("body", "trace", "words"),
    [
        (
            "def rank(self, host, gpus): return None if gpus == 4 else (0,)",
            "",
            ["job j2, at ", "waits while nothing runs in a, where it fits: rank refuses every host"],
        ),
        # jobs that wait come before those that run: each takes the GPUs of the other, at one instant
        (
            "def order(self, job): return (job.running,)",
            FULL,
            ["job j", "at 5.000 s: the job was stopped 100 times in a row and makes no progress"],
        ),
        # slices are shorter than the time to resume
        (
            "resume_s = 2\n    def order(self, job): return (job.attained,)\n    def review_after(self, job): return 1",
            FULL,
            ["job j", "the job was stopped 100 times in a row and makes no progress"],
        ),
    ],
    ids=["no host", "in turns", "short slices"],
)
def test_no_progress(
    hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, trace: str, words: list[str]
) -> None:
    monkeypatch.setattr(simulation, "MAX_STOPS", 100)
    line = error(hived, "mine:Wrong", body, trace=trace)
    assert "policy wrong, " in line
    for some in words:
        assert some in line


@pytest.mark.parametrize("policy", ["gandiva", "antman"])
def test_exact_safety_where_jobs_share_gpus(hived: Hived, folder: Path, policy: str) -> None:
    given = ["--spec", "spec.yaml", "--trace", "trace.csv", "--no-figures", "--policy", policy]
    answer = hived("simulate", *given, "--safety", "exact")
    assert answer.code == 5
    assert "its jobs share GPUs, so how fast they run depends on others" in answer.err
    assert not (folder / "results").exists()
    assert hived("simulate", *given, "--safety", "work-conserving").code == 0
