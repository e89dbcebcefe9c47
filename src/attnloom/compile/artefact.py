"""A compiled kernel as one file: a header that says what it holds and its checksum, metadata, machine code."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

_MAGIC = "attnloom-kernel-file-1"


@dataclass(frozen=True)
class Artefact:
    """metadata: Triton's facts of the kernel (JSON text); binary: cubin or hsaco."""

    metadata: str
    binary: bytes

    @property
    def facts(self) -> dict[str, Any]:
        """The metadata, parsed."""
        parsed: dict[str, Any] = json.loads(self.metadata)
        return parsed

    def pack(self, key: str) -> bytes:
        """The file's bytes."""
        text = self.metadata.encode()
        body = text + self.binary
        header = {"magic": _MAGIC, "key": key, "metadata": len(text), "sha256": hashlib.sha256(body).hexdigest()}
        return json.dumps(header).encode() + b"\n" + body

    @staticmethod
    def unpack(key: str, data: bytes) -> Artefact | None:
        """What `pack` made for `key`; None for anything else: another key, cut short, a bit changed."""
        head, newline, body = data.partition(b"\n")
        try:
            header = json.loads(head)
            expected = header["magic"], header["key"], header["sha256"]
            length = int(header["metadata"])
        except (ValueError, KeyError, TypeError):
            return None
        if not newline or expected != (_MAGIC, key, hashlib.sha256(body).hexdigest()):
            return None
        return Artefact(body[:length].decode(), body[length:])
