"""Files that are either complete or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that is either complete or not there at all: under another name first, which is then changed."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_bytes(content)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
