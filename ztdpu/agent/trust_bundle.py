"""Whom the device believes that it is control: the start-up file's authorities, then whatever control made of them.

Control says over its authenticated stream who is believed from now on (a SPIFFE bundle document); its sequence never
falls, and it is kept beside the floors so that a restart does not go back to an authority that was retired. When an
operator changes the start-up file's bundle, that counts and what was kept does not.
Called by `agent.identity_keeper`. Holds no secret.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from ztdpu.agent.journal import log
from ztdpu.errors import ConfigurationError, Location, RefusedError, StateError
from ztdpu.trust.bundle_document import BundleDocument, check_successor, read_bundle_document

FILE_NAME: Final = "bundle.json"


class TrustBundle:
    """One per daemon."""

    def __init__(self, folder: Path, *, trust_domain: str, start_up_pem: bytes) -> None:
        """Read what was kept; ConfigurationError when it is damaged."""
        self._path = folder / FILE_NAME
        self._trust_domain = trust_domain
        self._start_up_sha256 = hashlib.sha256(start_up_pem).hexdigest()
        self.pem = start_up_pem
        """For TLS."""
        self.sequence = 0
        """0 while the start-up file's is believed."""
        self._load()

    def take(self, octets: bytes) -> bool:
        """Believe a document of control from here on; returns whether it changed anything.

        Raises:
            SvidError: it is older than the present one, believes nobody, or is malformed.
            StateError: it cannot be kept: then it is not believed either.

        """
        document = read_bundle_document(octets, trust_domain=self._trust_domain)
        check_successor(document, sequence=self.sequence)
        if document.sequence == self.sequence:
            return False
        text = json.dumps({"start_up_sha256": self._start_up_sha256, "document": octets.decode()})
        try:
            _write(self._path, text)
        except OSError as error:
            remedy = "make room on its file system; control says it again at the next connection"
            raise StateError(f"{self._path} cannot be written: {error.strerror}", remedy=remedy) from error
        self._believe(document)
        log("bundle-taken", sequence=document.sequence, authorities=len(document.authorities))
        return True

    def _load(self) -> None:
        try:
            kept = json.loads(self._path.read_text())
            if kept["start_up_sha256"] != self._start_up_sha256:
                log("bundle-of-start-up-file", detail="it was changed: what control said before does not count")
                return
            self._believe(read_bundle_document(kept["document"].encode(), trust_domain=self._trust_domain))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RefusedError) as error:
            raise ConfigurationError(
                "is damaged",
                remedy="remove it and name the present bundle (`ztdpu identity bundle`) in the start-up file",
                where=Location(file=str(self._path), line=0),
            ) from error

    def _believe(self, document: BundleDocument) -> None:
        self.pem, self.sequence = document.pem, document.sequence


def _write(path: Path, text: str) -> None:
    """Replace the file so that it outlives a loss of power."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
