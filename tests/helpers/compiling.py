"""``ethorch.compile`` with any setting as a keyword."""

from __future__ import annotations

from typing import Any

import ethorch


def compile_with(model: Any, example_inputs: Any = None, target: str | None = None, **options: Any) -> ethorch.Program:
    """Compile with parameters of ``ethorch.compile`` or fields of ``Settings``."""
    own = {name: options.pop(name) for name in ("calibration", "progress") if name in options}
    settings = options.pop("settings", None) or ethorch.Settings()
    return ethorch.compile(model, example_inputs, settings=settings.with_(target=target, **options), **own)
