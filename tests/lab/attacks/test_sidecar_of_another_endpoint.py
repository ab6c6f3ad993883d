"""The attack on sidecars must be able to succeed: it finds a socket that is there, and takes what it is given."""

import socket
from itertools import islice

import pytest

from ztdpu.errors import PermissionDeniedError
from ztdpu.lab.attacks.sidecar_of_another_endpoint import Loot, claim, join_as, leads_elsewhere, tokens_to_try, ways_to
from ztdpu.rpc.sidecar_client import WhoAmI


@pytest.fixture
def listen(tmp_path):
    """Return a maker of listening sockets, by path or abstract name."""
    made = []

    def make(name):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.append(one)
        one.bind(name)
        one.listen()
        return name

    yield make
    for one in made:
        one.close()


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return str(tmp_path / name / "api.sock")


def test_it_finds_another_socket_by_every_way_and_not_its_own(tmp_path, listen):
    own, other = listen(folder(tmp_path, "red-0")), listen(folder(tmp_path, "blue-0"))
    listen(f"\0{other}")
    found = [address for address in ways_to(other, own) if leads_elsewhere(address, own)]
    assert other in found
    assert f"\0{other}" in found
    assert any("/../blue-0/" in one for one in found)
    assert any(one.startswith("/proc/") and one.endswith(other) for one in found)
    assert own not in found
    assert not leads_elsewhere(f"{tmp_path}/red-0/../red-0/api.sock", own)


def test_it_finds_nothing_where_nothing_is(tmp_path, listen):
    own = listen(folder(tmp_path, "red-0"))
    gone = str(tmp_path / "blue-0" / "api.sock")
    # Labs that run beside the test have a blue-0 with a socket too: only what names this test's folder counts.
    ours = [one for one in ways_to(gone, own) if str(tmp_path).lstrip("/") in one]
    assert gone in ours
    assert not [one for one in ours if leads_elsewhere(one, own)]


def test_tokens_in_turn():
    tokens = list(tokens_to_try("stolen", "over", 8))
    assert (tokens[0], tokens[1], tokens[3]) == ("stolen", "over", "stoleA")
    assert len(set(tokens)) == 5
    assert list(islice(tokens_to_try("xA", "", 4), 3, None)) == ["xB"]


class Sidecar:
    """Answers as it is told."""

    def __init__(self, *, grants):
        self.grants = grants

    def join(self, _token, _rank):
        return self.jwt_svid("")

    def jwt_svid(self, _audience, **_claim):
        if not self.grants:
            raise PermissionDeniedError("no")
        return "granted"

    def who_am_i(self):
        return WhoAmI(endpoint="red-0", tenant="red", spiffe_ids=("own",))

    def identities(self):
        return ("own", "other") if self.grants else ("own",)


@pytest.mark.parametrize(("grants", "joined", "foreign"), [(True, 3, ["blue", "other"]), (False, 0, [])])
def test_what_it_is_given_is_counted(grants, joined, foreign):
    loot = Loot()
    join_as(Sidecar(grants=grants), iter("abc"), 0, loot)
    claim(Sidecar(grants=grants), "blue", loot)
    assert (loot.attempts, loot.joined, loot.foreign) == (3, joined, foreign)
    assert loot.refusals == ([] if grants else ["permission-denied"] * 3)
