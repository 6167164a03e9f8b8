"""The path of one guaranteed request through the code: calls, files, and crossings from one file into another.

``python tools/request_path.py [-v]`` prints the means over requests in the steady state (80% full, 30% opportunistic,
one pod each); with ``-v`` the functions of the last one, in the order in which they are entered.
"""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.clusters import racks_of_1024_nodes

from hived import Cluster, Member, Preempt, Request, Wait

RACKS = 2
WARM, MEASURED = 4_000, 500

#: a function: its file and its name
Step = tuple[str, str]


class Recorder:
    """What is entered while it listens; functions that are no file's (of named tuples and the like) are left out."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """One event of the interpreter."""
        file = frame.f_code.co_filename
        if event == "call" and "/hived/" in file:
            self.steps.append((file.split("/hived/")[-1], frame.f_code.co_name))


def guaranteed_requests() -> list[list[Step]]:
    """The steps of those that start at once."""
    cluster = Cluster.from_spec(racks_of_1024_nodes(RACKS))
    dice = random.Random(1)
    most = RACKS * 8192 * 8 // 10
    running: dict[str, int] = {}
    found: list[list[Step]] = []
    number = used = 0
    while len(found) < MEASURED:
        while used > most:
            used -= running.pop(name := dice.choice(list(running)))
            cluster.release(name)
        number += 1
        gpus, is_loan = dice.choice([1, 2, 4, 8]), dice.random() < 0.3
        request = Request(f"g{number}", f"t{dice.randrange(8)}", -1 if is_loan else 0, (Member(1, gpus),))
        recorder = Recorder()
        if number > WARM and not is_loan:
            sys.setprofile(recorder)
        decision = cluster.schedule(request)
        cluster.commit(decision)
        sys.setprofile(None)
        if isinstance(decision, Wait):
            cluster.cancel(request.group)
            continue
        if isinstance(decision, Preempt):
            for victim in decision.victims:
                cluster.release(victim)
                used -= running.pop(victim)
            cluster.commit(cluster.schedule(request))
        elif recorder.steps:
            found.append(recorder.steps)
        running[request.group] = gpus
        used += gpus
    return found


def main() -> None:
    """Print it."""
    ways = guaranteed_requests()
    calls = sum(map(len, ways)) / len(ways)
    files = sum(len({file for file, _ in way}) for way in ways) / len(ways)
    crossings = sum(sum(a[0] != b[0] for a, b in pairwise(way)) for way in ways) / len(ways)
    print(f"schedule and commit of a guaranteed pod: {calls:.0f} calls, {files:.1f} files, {crossings:.1f} crossings")
    if "-v" in sys.argv:
        for file, name in ways[-1]:
            print(f"  {file:28} {name}")


if __name__ == "__main__":
    main()
