"""Label selectors, as Kubernetes means them."""

from __future__ import annotations

import pytest

from ztdpu.policy.documents import Selector
from ztdpu.policy.select import is_selected

LABELS = {"role": "worker", "zone": "a"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"role": "worker"}}, True),
        ({"matchLabels": {"role": "worker", "zone": "b"}}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "role", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "rack", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_selectors(selector: dict[str, object], selected: bool) -> None:
    assert is_selected(Selector.model_validate(selector), LABELS) is selected


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "Exists", "values": ["x"]},
        {"key": "a", "operator": "Like"},
    ],
)
def test_odd_requirements_are_refused(requirement: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"values|Input should be"):
        Selector.model_validate({"matchExpressions": [requirement]})
