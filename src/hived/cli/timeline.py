"""``hived sim timeline``: the picture of who runs on the GPUs of a node, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hived.server.results import ResultsSource
from hived.simulator.figures import need_matplotlib
from hived.simulator.timeline_figure import check_picture, picture_of, write_timeline
from hived.simulator.traces import read_window

from .console import messages


def timeline(
    results: Annotated[Path, typer.Argument(help="The folder that hived simulate wrote (its --out).")] = Path(
        "results"
    ),
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The picture to write, .svg or .png.")
    ] = Path("timeline.svg"),
    scheme: Annotated[str | None, typer.Option(help="Sharing scheme. Without: the last one in the results.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy. Without: the last one in the results.")] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            help="Node to show; again for more. Without: the one whose GPUs jobs share the longest, else the busiest."
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="DAY:DAY",
            help="Days to show, from 0 on, for example 2:2.5. "
            "Without: the first day with jobs that share a GPU, else the busiest.",
        ),
    ] = None,
    rates: Annotated[bool, typer.Option("--rates", help="Below it each job's rate of progress, and the sum.")] = False,
) -> None:
    """Draw who runs on the GPUs of a node, and when: alone, by turns, packed, as a guest, or paused.

    A band is a GPU, the height of a job in it its share of the time.

    Example: hived sim timeline results/ --scheme hived --window 2:2.5 --rates -o timeline.svg
    """
    need_matplotlib()
    check_picture(out)
    days = None if window is None else read_window(window)
    with messages().status("reading results") as status:
        source = ResultsSource(results, lambda name: status.update(f"reading {name}"))
        status.update("drawing")
        figure = picture_of(source.recorded(scheme, policy), node or (), days, rates)
        write_timeline(figure, out)
    typer.echo(out)
