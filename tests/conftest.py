"""For all tests: on a loaded machine a property is not refused for being slow, and in CI it draws the same each time."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")
