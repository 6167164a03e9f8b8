"""The tiers of tests and the other checks, each in an environment of its own: ``nox -l`` lists them.

``nox`` alone runs the fast tier; ``nox -s browser torch`` runs two others; words after ``--`` go to pytest
(``nox -s tests -- tests/cells -k buddy``). The minutes are those of two cores, the installation included.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

#: what a training image installs: a distribution of its own, which the tests need
RUNTIME = "packages/hived-runtime"
#: whose code is native in the compiled form: their tests run on it
DECIDING = ("cells", "cluster", "contract", "events", "scheduling", "simulator")


def _tier(session: nox.Session, extra: str, mark: str) -> None:
    session.install("-e", RUNTIME, "-e", f".[{extra}]")
    session.run("pytest", "-m", mark, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Fast tier, what `pytest` alone runs; needs nothing but Python. 5 minutes."""
    session.install("-e", RUNTIME, "-e", ".[dev]")
    session.run("pytest", *session.posargs)


@nox.session(name="tests-slow")
def tests_slow(session: nox.Session) -> None:
    """Long walks, many seeds, the real trace. 12 minutes."""
    _tier(session, "dev", "slow")


@nox.session
def cluster(session: nox.Session) -> None:
    """Kubernetes: a real control plane, the chart; needs Go and openssl. 5 minutes, and 10 for the first build."""
    session.run("python", "-m", "tools.control_plane.binaries")
    _tier(session, "dev", "cluster")


@nox.session
def browser(session: nox.Session) -> None:
    """Dashboard in Chromium, which has to be installed. 4 minutes."""
    _tier(session, "dev-browser", "browser")


@nox.session
def torch(session: nox.Session) -> None:
    """Training jobs on PyTorch, and the pager; needs a C++ compiler and 5 GB. 15 minutes."""
    _tier(session, "dev-torch", "torch")


@nox.session
def docker(session: nox.Session) -> None:
    """Containers that Docker starts for jobs; needs root, Docker and a static busybox. A minute."""
    _tier(session, "dev", "docker")


@nox.session
def libraries(session: nox.Session) -> None:
    """Training jobs whose loop is that of Transformers, Lightning or Accelerate; needs 5 GB. 7 minutes."""
    _tier(session, "dev-libraries", "libraries")


@nox.session
def compiled(session: nox.Session) -> None:
    """Native form of the deciding code: its tests and the kept results; needs a C compiler. 15 minutes."""
    session.install(f"./{RUNTIME}", ".[dev]", env={"HATCH_BUILD_HOOKS_ENABLE": "1"})
    form = session.run("hived", "--version", silent=True)
    if "(compiled)" not in str(form):
        session.error(f"the installed form is not the compiled one: {form}")
    session.run("pytest", *(f"tests/{name}" for name in DECIDING), *session.posargs)
    session.run("python", "-m", "tests.golden", "check")


@nox.session
def release(session: nox.Session) -> None:
    """Chaos, a million events, whole reproductions, mutants. Hours."""
    _tier(session, "dev-release", "release")
    session.run("python", "-m", "tools.mutants")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types, layers and the house's other rules, which the fast tier has too. 1 minute."""
    session.install("-e", RUNTIME, "-e", ".[dev]")
    session.run("pytest", "tests/test_house.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Documentation site, in `site/`; a warning is an error. 1 minute."""
    session.install("-e", RUNTIME, "-e", ".[dev-docs]")
    session.run("mkdocs", "build", "--strict", *session.posargs)
