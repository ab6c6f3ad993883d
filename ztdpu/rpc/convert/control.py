"""Control's own status, to and from messages."""

from __future__ import annotations

import dataclasses

from ztdpu.model.administration import ControlStatus
from ztdpu.v1 import control_pb2


def status_to_message(status: ControlStatus) -> control_pb2.ControlStatus:
    """Message for the status; fields have the same names on both sides."""
    return control_pb2.ControlStatus(**dataclasses.asdict(status))


def status_from_message(message: control_pb2.ControlStatus) -> ControlStatus:
    """The status that a message carries."""
    return ControlStatus(**{field.name: getattr(message, field.name) for field in dataclasses.fields(ControlStatus)})
