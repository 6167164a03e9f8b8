"""Jobs for these tests are those of the tests of the runtime."""

from tests.runtime.conftest import own_cache, start  # noqa: F401  # fixtures
