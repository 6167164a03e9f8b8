"""The verbs for training jobs, as people type them, where no job trains: what they print, and their exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hived_control import commands
from hived_control.commands import _Dialogue
from hived_control.errors import ConflictError
from hived_control.folder import JobFolder
from hived_control.page import Abilities, Answer, State
from tests.cli.helpers import HIVED, Hived, refused

from .conftest import Ranks


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("status nobody", 4, "no training job 'nobody' on this machine: none runs under hived train run"),
        ("suspend ../x", 2, "a job cannot be named '../x'"),
        ("limit train", 2, "nothing to change; give --memory, --share or both"),
        ("limit train --memory much", 2, "'much' is no number of bytes; write 8GiB, 500MiB or none"),
        ("limit train --share 0%", 2, "'0%' is no share of a device's time; write 40%"),
        ("limit train --share nan", 2, "'nan' is no share of a device's time"),
        ("limit train --up-to 1GiB", 2, "--up-to needs --memory"),
        ("limit train --memory 2GiB --up-to 1GiB", 2, "--up-to 1.0 GiB is below --memory 2.0 GiB"),
        ("run -- no-such-program", 2, "no-such-program: no such program; it is looked for in PATH"),
        ("run", 2, "no command; give it after --"),
        ("run --from /nowhere", 2, "no job moves through it"),
        ("run --name a/b -- true", 2, "a job cannot be named 'a/b'"),
        ("migrate nobody --to cpu", 4, "no training job 'nobody'"),
    ],
)
def test_wrong_input_is_one_line(hived: Hived, line: str, code: int, message: str) -> None:
    assert message in refused(hived("train", *line.split()), code)


def run(jobs: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """``hived train run`` in a process of its own, which becomes that of the job."""
    environment = {**os.environ, "HIVED_RUNTIME": "on", "HIVED_JOBS": str(jobs), **variables}
    return subprocess.Popen(
        [*HIVED, "train", "run", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_program_without_pytorch(jobs: Path) -> None:
    with run(jobs, "--", "sh", "-c", "echo hello; exit 7") as process:
        assert process.communicate() == ("hello\n", "hived: training job sh\n")
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("verb", "number"), [("migrate train --to cuda:1", 1), ("migrate train --to cuda:1", 2), ("suspend train", 2)]
)
def test_job_that_ends_meanwhile(
    jobs: Path, ranks: Ranks, hived: Hived, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    """Its folder is gone when patience is over, and the command is to be taken back."""
    ranks(number)
    pause = _Dialogue.pause

    def ends(dialogue: _Dialogue) -> None:
        pause(dialogue)
        shutil.rmtree(jobs / "train", ignore_errors=True)

    monkeypatch.setattr(_Dialogue, "pause", ends)
    assert "has ended" in refused(hived("train", *verb.split(), "--timeout", "0.1s"), 4)


def test_own_sitecustomize_still_runs(jobs: Path, tmp_path: Path) -> None:
    """And torch is not imported for a script that does not import it."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'ran'")
    code = "import sys; print(sys.mine, 'torch' in sys.modules)"
    with run(jobs, "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path)) as process:
        assert process.communicate()[0] == "ran False\n"


def test_job_without_a_mini_batch(jobs: Path, hived: Hived) -> None:
    with run(jobs, "--name", "sleeper", "--", "sleep", "600") as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "hived: training job sleeper\n"
            assert "no mini-batch has ended yet" in hived("train", "status", "sleeper").out
            assert "has not ended its first mini-batch" in refused(hived("train", "limit", "sleeper", "--share", "50%"))
            assert "only NVIDIA's driver 570 or later could suspend it" in refused(
                hived("train", "suspend", "sleeper"), 69
            )
            taken = refused(hived("train", "run", "--name", "sleeper", "--", "true"))
            assert "a training job 'sleeper' runs already on this machine: choose another --name" in taken
        finally:
            process.kill()


@pytest.mark.parametrize("named", [False, True])
def test_unnamed_job_on_a_gpu_is_moved_by_the_driver(
    jobs: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    moved: list[tuple[int, str, str]] = []

    class Driver:
        def move(self, pid: int, to: str, now: str = "") -> None:
            moved.append((pid, to, now))

    monkeypatch.setattr(commands, "Checkpoints", Driver)
    (page,) = ranks(1)
    page.report_answer(Answer(state=State.RUNNING, device="cuda:0"))
    page.report_abilities(Abilities(named=named))
    folder = JobFolder(jobs / "train")
    folder.write_about({"pid": page.pid})
    job = commands.TrainingJob(folder)
    if named:
        with pytest.raises(commands.NotYetError):
            job.migrate("cuda:1", 0.01)
        assert moved == []
        return
    job.migrate("cuda:1", 1.0)
    job.migrate("cuda:2", 1.0)
    assert moved == [(page.pid, "cuda:1", ""), (page.pid, "cuda:2", "cuda:1")]
    page.report_answer(Answer(state=State.SUSPENDED, device="cuda:2"))
    with pytest.raises(ConflictError, match="is suspended"):
        job.migrate("cuda:1", 1.0)
