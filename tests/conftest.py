"""For all tests: on a loaded machine a property is not refused for being slow, in CI it draws the same each time.

With several processes (`make test` takes two), what uses the machine itself (namespaces, labs, ports, their timing)
stays in one of them, in order, and begins first; the other files go to whoever is free.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")

A_NEWCOMER = "tests/e2e/test_readme.py"
"""A clone of its own, mostly set-up: beside the others it costs no time."""
OF_THE_MACHINE = ("tests/agent/", "tests/e2e/", "tests/examples/", "tests/lab/")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(OF_THE_MACHINE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.split("::")[0]
            return "machine" if path.startswith(OF_THE_MACHINE) and path != A_NEWCOMER else path

    return Scheduler(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--yaml-folder", default="", help="files that tests/policy/test_yaml_suite.py reads as policy")
