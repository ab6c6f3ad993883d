"""Who may change policy, as one commit says: its `allowed_signers`, `owners.yaml` and `revoked_signers`, at the root.

Read from the last accepted commit and applied to the one after it, so nobody lets himself in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import CommitContentError, CommitSignatureError, Location
from ztdpu.policy.git.allowed_signers import (
    NAMESPACE,
    Signer,
    find_principals,
    parse_allowed_signers,
    parse_revoked_signers,
)
from ztdpu.policy.git.objects import Commit, Objects, list_root, read_blob
from ztdpu.policy.git.owners import Owners, parse_owners
from ztdpu.policy.load import OWNERS_FILE
from ztdpu.trust.sshsig import name_signer, verify_by_any

SIGNERS_FILE: Final = "allowed_signers"
REVOKED_FILE: Final = "revoked_signers"
TRUST_FILES: Final = (SIGNERS_FILE, OWNERS_FILE, REVOKED_FILE)
TRUST_FILE_LIMIT_OCTETS: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The three files, read."""

    signers: tuple[Signer, ...]
    owners: Owners
    revoked: frozenset[str] = frozenset()
    """Fingerprints."""

    def find_signer(self, commit: Commit, *, now_unix_s: int, revoked: frozenset[str]) -> frozenset[str]:
        """Verify a commit's signature and give the principals it speaks for. `revoked` adds to what the files say.

        Raises:
            CommitSignatureError: unsigned, by a key that is unknown, revoked or outside its validity, or wrong.

        """
        if not commit.signature:
            raise CommitSignatureError("is not signed", remedy="sign it: git commit --amend --no-edit -S")
        if not commit.signature.startswith("-----BEGIN SSH SIGNATURE-----"):
            raise CommitSignatureError("is not signed with an SSH key", remedy="git config gpg.format ssh")
        claimed = name_signer(commit.signature, namespace=NAMESPACE, refusal=CommitSignatureError)
        if claimed.fingerprint in self.revoked | revoked:
            raise CommitSignatureError(f"is signed by the key {claimed.fingerprint}, which is revoked")
        keys = {signer.key.blob: signer.key for signer in self.signers}
        if claimed.blob not in keys:
            raise CommitSignatureError(
                f"is signed by the key {claimed.fingerprint}, which is not in {SIGNERS_FILE} of the commit before",
                remedy=f"have an owner of {SIGNERS_FILE} add it in a commit of its own",
            )
        key = verify_by_any(
            commit.payload, commit.signature, list(keys.values()), namespace=NAMESPACE, refusal=CommitSignatureError
        )
        return find_principals(self.signers, key, committed_unix_s=commit.committer_unix_s, now_unix_s=now_unix_s)


def read_trust(objects: Objects, tree: str) -> Trust:
    """Read the files of a commit's tree.

    Raises:
        CommitContentError: a file is missing (`revoked_signers` may be) or malformed, or nobody could ever change it.

    """
    root = list_root(objects, tree)
    texts: dict[str, str] = {}
    for name in TRUST_FILES:
        if name in root:
            texts[name] = _decode(name, read_blob(objects, root[name], name, limit_octets=TRUST_FILE_LIMIT_OCTETS))
    return parse_trust(texts)


def parse_trust(texts: Mapping[str, str]) -> Trust:
    """The same from the text of the files, by name."""
    for name in (SIGNERS_FILE, OWNERS_FILE):
        if name not in texts:
            raise CommitContentError(
                "is missing at the root of the repository",
                remedy="docs/how-to/policy-in-git.md shows one",
                where=Location(file=name, line=0),
            )
    trust = Trust(
        signers=parse_allowed_signers(texts[SIGNERS_FILE], file=SIGNERS_FILE),
        owners=parse_owners(texts[OWNERS_FILE], file=OWNERS_FILE),
        revoked=parse_revoked_signers(texts.get(REVOKED_FILE, ""), file=REVOKED_FILE),
    )
    _check_not_locked_out(trust)
    return trust


def _check_not_locked_out(trust: Trust) -> None:
    able = {name for one in trust.signers if one.key.fingerprint not in trust.revoked for name in one.principals}
    known = {name for one in trust.signers for name in one.principals}
    for rule in trust.owners.spec.rules:
        strangers = sorted(set(rule.principals) - known)
        if strangers:
            raise CommitContentError(
                f"the rule for {rule.path} names {', '.join(strangers)}, who is not in {SIGNERS_FILE}",
                where=Location(file=OWNERS_FILE, line=0),
            )
    for name in TRUST_FILES:
        owning = trust.owners.rule_for(name)
        if owning is None or not able & set(owning.principals):
            raise CommitContentError(
                f"nobody could ever change {name} again: no owner of it has a key that counts",
                remedy='give it an owner, for example with a first rule for "**"',
                where=Location(file=OWNERS_FILE, line=0),
            )


def _decode(name: str, octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        raise CommitContentError("not UTF-8 text", where=Location(file=name, line=0)) from None
