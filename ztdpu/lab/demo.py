"""The demonstration: two tenants train, every attack fails, a device is revoked under traffic; all of it counted.

    1 lab up          2 captures on br0, behind blue's fence and in front of it
    3 blue and red train, and while they do:  4 a canary, and one packet to show  5 the attacks of `lab.campaign`
    6 dpu-1 is revoked while datagrams flow both ways, and red trains on on the devices that stay        7 lab down

Called by `ztdpu demo`, which shows the `Step`s and prints the result. Measures nothing by itself what the
lab's captures can measure: a packet counts where it passes, not where somebody says it went. However it ends,
nothing of the lab stays, unless `keep` was asked for and it ended by itself.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError, StateError, ZtdpuError
from ztdpu.lab.bystander import STEPS, Bystander
from ztdpu.lab.campaign import NEED_A_SPARE, Apart, Campaign, choose_cast
from ztdpu.lab.crew import Crew, Hand
from ztdpu.lab.fabric.choice import Fabric, FabricChoice, full_line
from ztdpu.lab.interruption import Interruption
from ztdpu.lab.layout import UNDERLAY_OVERHEAD_OCTETS, LabPlan, family
from ztdpu.lab.record import read_record, require_record
from ztdpu.lab.scorecard import Scorecard
from ztdpu.lab.takedown import is_running
from ztdpu.lab.userspace.bystander import StreamBystander
from ztdpu.rpc.client import ControlClient

STRANGER: Final = "dpu-x"
"""A device of its own for the attack with altered firmware: in policy and roster, without endpoints."""
REVOKED: Final = "dpu-1"
DEVICES: Final = 3
"""One more than the example has, so that a training over two devices goes on when one is revoked."""
BYSTANDERS: Final = ("red-0", "red-2")
TENANTS: Final = ("blue", "red")
NO_TRAINING: Final = "not on this fabric, endpoints in memory have no network stack"
STREAM_RATE_PPS: Final = 2_000
_TCP_ATTEMPTS: Final = 20
_IDENTITY_ATTEMPTS: Final = 3
_CANARIES: Final = 200
_POSTCARD: Final = b"Dear blue-1, my gradient of step 1: -0.0271 +0.1183 +0.0094. Tell nobody."
_IPV4_UDP_OCTETS: Final = 28
_PROGRESS_S: Final = 0.25
_STREAM_S: Final = 1.2
_AFTER_REVOCATION_S: Final = 2.0
_TRAINING_TIMEOUT_S: Final = 45.0
_INTERRUPT_S: Final = 15.0
"""How long an interrupted `lab up` may take to clear what it has built."""
_STEPS: Final = 2_500
"""Enough that both trainings still run while the attacks are made."""
_CANARY_PORT, _VICTIM_PORT, _STREAM_PORT, _TRAINING_PORT = 5003, 2049, 5001, 29500
EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the display."""

    name: str
    state: str
    """`running`, `done` or `failed`."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one tenant's training is."""

    tenant: str
    step: int
    steps: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Postcard:
    """One packet of a tenant, twice: IP packets as captured."""

    clear: bytes
    """On ztdpu0, as the tenant sent it."""
    sealed: bytes
    """On br0."""


Report = Callable[[Step], None]


class Demo:
    """One run. `run` leaves nothing behind unless `keep`."""

    def __init__(
        self,
        *,
        choice: FabricChoice,
        state: Path,
        prefix: str,
        report: Report,
        progress: Callable[[Progress], None],
        interruption: Interruption,
        keep: bool = False,
    ) -> None:
        """`report` and `progress` are called from this thread and others."""
        self.state = state
        self.postcard: Postcard | None = None
        self._progress = progress
        self.score = Scorecard(fabric=choice.fabric, isolation=choice.isolation)
        self._prefix = prefix
        self._report = report
        self._interruption = interruption
        self._keep = keep
        self._canary = secrets.token_bytes(32)
        self._is_clean = False
        self._warden: subprocess.Popen[bytes] | None = None

    def run(self) -> dict[str, Any]:
        """Run everything; a step that breaks is a fault in the result, not an exception.

        Raises what `lab up` said when there is no lab to show anything in, KeyboardInterrupt when a signal came: the
        lab is gone then, `keep` or not.
        """
        start = time.monotonic()
        self.refuse_running_lab()
        self._start_warden()
        atexit.register(self._clean)  # before the lab is built: also what escapes between two lines is cleaned up
        try:
            with self._step("lab up"):
                options = ("--fabric", self.score.fabric, "--prefix", self._prefix, "--devices", str(DEVICES))
                self._lab("up", *options, "--stranger", STRANGER)
                plan = require_record(self.state).plan
            self._show(plan)
        except ZtdpuError:
            self._keep = False  # it did not come up
            raise
        finally:
            self._clean()
        return self.score.document(seconds=time.monotonic() - start)

    def _show(self, plan: LabPlan) -> None:
        try:
            with Crew(self.state) as crew, ControlClient.connect(f"unix:{plan.paths.admin_socket}") as control:
                self._run_inside(crew, control, plan)
        except ZtdpuError as error:
            self.score.note_fault(str(error))

    def _start_warden(self) -> None:
        """Nothing of the lab would end with us if we were killed."""
        command = [sys.executable, "-m", "ztdpu.lab.warden", str(os.getpid()), str(self.state)]
        self._warden = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _clean(self) -> None:
        """Take the lab down, once; signals wait."""
        self._interruption.shield()
        atexit.unregister(self._clean)
        self._take_down()
        if self._warden is not None:
            self._warden.kill()
            self._warden.wait()

    def _take_down(self) -> None:
        if (self._keep and not self._interruption.number) or self._is_clean:
            return
        self._is_clean = True
        with suppress(ZtdpuError), self._step("lab down"):
            deadline = time.monotonic() + _INTERRUPT_S
            while True:
                try:
                    self._lab("down")
                    break
                except MachineError:  # a `lab up` that a signal tore from us may still work there
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)

    def _run_inside(self, crew: Crew, control: ControlClient, plan: LabPlan) -> None:
        with self._step("devices attested") as say:
            say(self.score.note_devices([one for one in control.list_devices() if one.name != STRANGER]))
        clear_octets = len(_POSTCARD) + _IPV4_UDP_OCTETS
        sealed_octets = clear_octets + UNDERLAY_OVERHEAD_OCTETS[family(plan.devices[0].underlay_address)]
        fence, wire, sent = crew.start_captures(
            [
                ("blue-1", "ztdpu0", ["--canary", self._canary.hex(), "--direction", "in"]),
                ("fabric", "br0", ["--canary", self._canary.hex(), "--keep-octets", str(sealed_octets)]),
                ("blue-0", "ztdpu0", ["--direction", "out", "--keep-octets", str(clear_octets)]),
            ]
        )
        with self._step("blue and red train" if self._training_tenants else "training") as say:
            ranks = {tenant: self._start_training(crew, tenant) for tenant in self._training_tenants}
            if not ranks:
                say(self.score.note_no_training(f"{NO_TRAINING}. With training: {full_line('make demo')}"))
            with self._step("canary through the fabric"):
                self._send_canaries(crew)
                self._keep_postcard(crew, plan.endpoint("blue-1").addresses[0], sent, wire)
            self._attack(Campaign(crew, control, plan, choose_cast(plan, spare=STRANGER), wire=wire))
            if ranks:
                say(self._finish_training(ranks))
        with self._step(f"{REVOKED} revoked under traffic") as say:
            say(self._revoke(crew, control))
        with self._step("what the wire showed") as say:
            say(self.score.note_wire(wire.finish(), fence.finish()))

    # --- lab ---

    def refuse_running_lab(self) -> None:
        """Raise StateError when there is a lab in the directory: it is not ours to take down."""
        record = read_record(self.state)
        if record is not None and is_running(record):
            remedy = f"ztdpu lab down --state {self.state}, or name another --state and --prefix"
            raise StateError(f"a lab is up in {self.state}", remedy=remedy)

    def _lab(self, verb: str, *options: str) -> None:
        """Run `ztdpu lab` as a process, because it forks and we have threads.

        In a session of its own, so that a terminal interrupts us alone: we ask it to end and wait until it has.
        """
        command = [sys.executable, "-m", "ztdpu", "lab", verb, "--state", str(self.state), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, said = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_INTERRUPT_S)
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            # `lab up` that refuses leaves nothing of its own: what is there now is another's, not ours to take down.
            self._is_clean = self._is_clean or (verb == "up" and process.returncode > 0)
            raise _error_of(said)

    # --- training ---

    @property
    def _training_tenants(self) -> tuple[str, ...]:
        """Who trains: nobody where endpoints have no network stack."""
        return () if self.score.fabric is Fabric.USERSPACE else TENANTS

    def _start_training(self, crew: Crew, tenant: str) -> list[Hand]:
        hosts = [f"{tenant}-{rank}" for rank in range(2)]
        ranks = [
            crew.start(
                host, sys.executable, str(EXAMPLE), "--rank", str(rank), "--world-size", str(len(hosts)),
                "--hosts", ",".join(hosts), "--port", str(_TRAINING_PORT), "--timeout", "30", "--steps", str(_STEPS),
                "--progress", str(_PROGRESS_S),
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        ranks[0].follow(lambda said: self._pass_on(tenant, said))
        return ranks

    def _pass_on(self, tenant: str, said: dict[str, Any]) -> None:
        """Say how far a training is; its last line says the result."""
        step, loss = said.get("step", _STEPS), said.get("loss", 0.0)
        self._progress(Progress(tenant=tenant, step=step, steps=_STEPS, loss=loss))

    def _finish_training(self, ranks: dict[str, list[Hand]]) -> str:
        words = []
        for tenant, hands in ranks.items():
            reports = [hand.finish(timeout_s=_TRAINING_TIMEOUT_S) for hand in hands]
            words.append(self.score.note_training(tenant, reports))
        return ", ".join(words)

    def _send_canaries(self, crew: Crew) -> None:
        """Send 32 random octets, in the clear as far as the tenant knows, many times."""
        sink = crew.start_python("blue-1", "ztdpu.lab.traffic", "sink", "--port", str(_CANARY_PORT))
        sink.read_line()
        sender = crew.start_python(
            "blue-0", "ztdpu.lab.traffic", "send", "--host", "blue-1", "--port", str(_CANARY_PORT),
            "--rate", "500", "--count", str(_CANARIES), "--payload", self._canary.hex(),
        )  # fmt: skip
        sender.finish()
        sink.finish()

    def _keep_postcard(self, crew: Crew, address: str, sent: Hand, wire: Hand) -> None:
        """Send one packet that people can read, and keep it as it is on both sides of the device."""
        crew.start_python(
            "blue-0", "ztdpu.lab.traffic", "send", "--host", address, "--port", str(_CANARY_PORT),
            "--count", "1", "--payload", _POSTCARD.hex(),
        ).finish()  # fmt: skip
        deadline = time.monotonic() + 1
        while not (sealed := wire.ask()["kept"]) and time.monotonic() < deadline:
            time.sleep(0.02)
        clear = bytes.fromhex(sent.finish()["kept"])
        if sealed and _POSTCARD in clear:
            self.postcard = Postcard(clear=clear, sealed=bytes.fromhex(sealed))

    def _attack(self, campaign: Campaign) -> None:
        """Attacks on attestation wait for control, the others for counters: both at the same time."""
        campaign.start()
        attacks = dict(campaign.attacks())
        apart = Apart({name: attacks[name] for name in NEED_A_SPARE})
        for name, run in attacks.items():
            with self._step(f"attack: {name}") as say:
                trial = apart.result(name) if name in NEED_A_SPARE else run()
                say(self.score.note_attack(**asdict(trial)))

    # --- revocation ---

    def _revoke(self, crew: Crew, control: ControlClient) -> str:
        """Datagrams flow from and to the device; both receivers' captures say when the last one was accepted.

        Red goes on over two other devices meanwhile: trains, and to its end, where it can.
        """
        red = self._start_bystander(crew)
        ends = ("blue-0", "blue-1")
        port = str(_STREAM_PORT)
        sinks = [crew.start_python(end, "ztdpu.lab.traffic", "sink", "--port", port, "--deaf") for end in ends]
        captures = crew.start_captures(
            [(end, "ztdpu0", ["--direction", "in", "--udp", port, "--stamps"]) for end in ends]
        )
        for sink in sinks:
            sink.read_line()
        rate = str(STREAM_RATE_PPS)
        senders = [
            crew.start_python(end, "ztdpu.lab.traffic", "send", "--host", other, "--port", port, "--rate", rate)
            for end, other in (ends, ends[::-1])
        ]
        for sender in senders:
            sender.read_line()
        red.wait_begun()
        time.sleep(_STREAM_S)
        change = control.revoke_device(REVOKED, reason="demonstration")
        time.sleep(_AFTER_REVOCATION_S)
        steps = red.steps_between(change.acknowledged_unix_ns / 1e9, time.time())
        for sender in senders:
            sender.finish()
        counts = [capture.finish() for capture in captures]
        for sink in sinks:
            sink.finish()
        stamps = [count["stamps_unix_ns"] for count in counts]
        words = self.score.note_revocation(REVOKED, stamps, change.acknowledged_unix_ns)
        return f"{words}; {self.score.note_bystander('red', steps, red.finish())}"

    def _start_bystander(self, crew: Crew) -> Bystander | StreamBystander:
        if self.score.fabric is Fabric.USERSPACE:
            return StreamBystander(crew, *BYSTANDERS)
        return Bystander(crew, EXAMPLE, BYSTANDERS, self._pass_on_bystander)

    def _pass_on_bystander(self, step: int, loss: float) -> None:
        self._progress(Progress(tenant="red", step=step, steps=STEPS, loss=loss))

    @contextmanager
    def _step(self, name: str) -> Iterator[Callable[[str], None]]:
        said: list[str] = []
        faults = len(self.score.faults)
        self._report(Step(name=name, state="running"))
        try:
            yield said.append
        except ZtdpuError:  # whoever catches it says it, once
            self._report(Step(name=name, state="failed"))
            raise
        failed = len(self.score.faults) > faults
        self._report(Step(name=name, state="failed" if failed else "done", detail=" ".join(said)))


def _error_of(said: str) -> MachineError:
    """Read back the error that a command of ours printed."""
    _, _, words = said.rpartition("error: ")
    message, _, remedy = words.partition("  next: ")
    return MachineError(message.strip() or "it ended without a word", remedy=remedy.strip())
