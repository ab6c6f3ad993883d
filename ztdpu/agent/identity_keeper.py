"""The device's identity towards control: hellos that prove it, the bundle that it follows, alarms about its misuse.

`hello` numbers and signs the first message of each stream; `accept` takes what control says about identities and leaves
the rest; `identity.json` in the state directory tells `ztdpu identity show --state` what is held (no key).
Called by `agent.daemon`. Decides nothing about leases.
"""

from __future__ import annotations

import json
from typing import Final

from ztdpu.agent.attester import Attester, Identity
from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.journal import warn
from ztdpu.agent.own_keys import sign_hello
from ztdpu.agent.trust_bundle import TrustBundle
from ztdpu.agent.uplink import Uplink
from ztdpu.errors import ZtdpuError
from ztdpu.v1 import agent_pb2

FILE_NAME: Final = "identity.json"


class IdentityKeeper:
    """One per daemon."""

    def __init__(self, spec: AgentSpec, start_up_pem: bytes) -> None:
        """ConfigurationError when the kept bundle is damaged."""
        self._spec = spec
        self.trust = TrustBundle(spec.floors_folder, trust_domain=spec.trust_domain, start_up_pem=start_up_pem)
        self._hellos = 0
        self._svid_pem = b""

    def hello(self, identity: Identity, worker_instance: bytes) -> agent_pb2.AgentHello:
        """The first message of a stream."""
        self._hellos += 1
        if self._svid_pem != identity.svid_pem:
            self._svid_pem = identity.svid_pem
            self._tell()
        return agent_pb2.AgentHello(
            device=self._spec.device,
            binding_sha256=identity.binding_sha256,
            worker_instance=worker_instance,
            number=self._hellos,
            offer_signature=sign_hello(
                identity.keys,
                device=self._spec.device,
                binding_sha256=identity.binding_sha256,
                worker_instance=worker_instance,
                number=self._hellos,
            ),
        )

    def accept(self, message: agent_pb2.ControlMessage, attester: Attester, uplink: Uplink) -> bool:
        """Take a message about identities; returns whether it was one."""
        match message.WhichOneof("message"):
            case "bundle":
                self._follow(message.bundle.document, attester, uplink)
            case "identity_alarm":
                alarm = message.identity_alarm
                warn("identity-shown-elsewhere", cause=alarm.cause[:200], peer=alarm.peer[:100])
            case _:
                return False
        return True

    def _follow(self, document: bytes, attester: Attester, uplink: Uplink) -> None:
        try:
            changed = self.trust.take(document)
        except ZtdpuError as error:
            warn("bundle-refused", code=error.code, cause=error.message)
            return
        if changed:
            attester.bundle_pem = uplink.bundle_pem = self.trust.pem
            self._tell()

    def _tell(self) -> None:
        """Replace `identity.json`, if that can be done."""
        path = self._spec.state_dir / FILE_NAME
        document = {
            "trust_domain": self._spec.trust_domain,
            "bundle_sequence": self.trust.sequence,
            "bundle": self.trust.pem.decode(),
            "svid": self._svid_pem.decode(),
        }
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(document) + "\n")
            fresh.replace(path)
        except OSError as error:
            warn("identity-not-written", cause=str(error))
