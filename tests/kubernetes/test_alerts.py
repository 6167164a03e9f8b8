"""Alerts and the dashboard speak of metrics that the service has, and of all of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from tools.render import CHART, DEPLOY

from .test_metrics import EXPECTED as METRICS

DASHBOARD = json.loads((DEPLOY / "grafana" / "hived.json").read_text(encoding="utf-8"))
(RULES,) = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
ALERTS = RULES["rules"]
EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in ALERTS},
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
    **{f"variable {one['name']}": one["query"] for one in DASHBOARD["templating"]["list"]},
}
TARGET_LABELS = {"namespace", "pod", "le"}  #: that Prometheus adds, or a histogram has


def metrics_in(expression: str) -> set[str]:
    names = set(re.findall(r"\bhived_\w+", expression))
    return {name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_every_metric_is_shown() -> None:
    assert {name for expression in EXPRESSIONS.values() for name in metrics_in(expression)} == set(METRICS)


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_expression(where: str) -> None:
    """Of metrics and labels that exist; a counter by its growth, but for the one that must stay 0."""
    expression = EXPRESSIONS[where]
    by = [label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(", ")]
    selected = re.findall(r"[{,]\s*(\w+)(?:=~?|!=)", expression)
    known = {label for metric in metrics_in(expression) for label in METRICS[metric][1]}
    assert {*by, *selected} <= known | TARGET_LABELS
    assert expression.count("(") == expression.count(")")
    for counter in re.findall(r"\bhived_\w+_total", expression):
        grows = re.search(rf"(rate|increase)\({counter}\b", expression)
        assert grows or counter == "hived_safety_violations_total"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert(rule: dict[str, Any]) -> None:
    """It says how bad it is and what to do, with labels that it has."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = re.match(r"(?:\w+ )?.*?by \(([^)]*)\)", rule["expr"])
    assert used <= (set(kept[1].split(", ")) if kept else TARGET_LABELS)


def test_manual_has_the_alerts() -> None:
    manual = (DEPLOY.parent / "docs" / "howto" / "operating.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Hived\w+)`", manual)) == {rule["alert"] for rule in ALERTS}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
