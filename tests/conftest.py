"""What all tests share: hypothesis draws the same examples on every run, and never fails by the clock; Ctrl-C works."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, Phase, settings

# a shell ignores SIGINT for what it starts with `&`, and programs inherit that: those under test must not
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "hived",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("hived")
