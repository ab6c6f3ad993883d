"""`ztdpu lab fault`, `root-of-trust` and `reference-values`: emulated devices, one by one."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from ztdpu.lab.layout import DEFAULT_STATE

StateOption = Annotated[Path, typer.Option("--state", envvar="ZTDPU_STATE", help="Directory of the lab.")]
_PRESETS: Final = (
    "firmware-altered, firmware-rollback, debug-enabled, stale-alias, old-boot, wrong-root, duplicate-index,"
    " unsigned-last, nonce-reuse, malleated-signature, foreign-binding, slow, silent; none heals"
)


def fault(
    device: Annotated[str, typer.Argument(help="Name of the device.", show_default=False)],
    preset: Annotated[str, typer.Argument(help=f"What it does: {_PRESETS}.", show_default=False)],
    *,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Make a device misbehave while the lab runs, or heal it: ztdpu lab fault dpu-1 firmware-rollback."""
    from ztdpu.lab.faults import read_preset, set_fault
    from ztdpu.trust.faults import Preset

    wanted = read_preset(preset)
    set_fault(state, device, wanted)
    if wanted is Preset.NONE:
        print(f"{device} is a good device again; it attests by itself", file=sys.stderr)
    else:
        print(f"{device} is now {wanted}; see `ztdpu device show {device}` and `ztdpu audit list`", file=sys.stderr)


def root_of_trust(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:2323",
    profile: Annotated[str, typer.Option(help="Product that is emulated.")] = "bluefield-3",
    root: Annotated[
        Path | None, typer.Option(help="Where to write the root certificate; a temporary file without it.")
    ] = None,
    preset: Annotated[str, typer.Option("--fault", help=f"Misbehave: {_PRESETS}.")] = "none",
    any_address: Annotated[bool, typer.Option("--any-address", help="Listen beyond loopback.")] = False,
) -> None:
    """Run one emulated device alone, with fresh secrets, for SPDM tools over TCP (framing of DMTF's spdm-emu)."""
    from ztdpu.lab.faults import read_preset
    from ztdpu.lab.root_of_trust import LonelyDevice, serve_device, write_root
    from ztdpu.rpc.spdm_tcp import read_address
    from ztdpu.trust.profile import load_profile

    wanted, address = read_preset(preset), read_address(listen, loopback_only=not any_address)
    device = LonelyDevice(load_profile(profile))
    with ExitStack() as stack:
        if root is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ztdpu-root-of-trust-"))) / "root.pem"
        write_root(device, root)

        def ready(at: tuple[str, int]) -> None:
            place = f"[{at[0]}]:{at[1]}" if ":" in at[0] else f"{at[0]}:{at[1]}"
            print(f"listening {place}\nroot {root}", flush=True)
            print(
                f"try: ztdpu attestation probe --spdm-tcp {place} --root {root} --profile {profile}\nCtrl-C ends it",
                file=sys.stderr,
                flush=True,
            )

        serve_device(device, address=address, preset=wanted, ready=ready)
    print("ended", file=sys.stderr)


def reference_values(
    profile: Annotated[str, typer.Argument(help="Product, like generic.", show_default=False)],
) -> None:
    """Print the reference values of what emulated devices of a product ship with, for a directory of policy files."""
    from ztdpu.cli.output import Format, print_document
    from ztdpu.lab.shipped import make_reference_values
    from ztdpu.trust.profile import load_profile

    print_document(make_reference_values(load_profile(profile)), output=Format.YAML)
