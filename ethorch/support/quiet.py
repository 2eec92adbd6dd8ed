"""Silence messages of torch, torchao and ExecuTorch that do not concern the user's model, except errors."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: Loggers that report missing GPU kernels, internal calls of deprecated functions, and skipped passes.
_LOGGERS = ("torchao", "torch.utils._pytree", "torch.export", "torch._export", "torch.fx", "executorch")
#: Loggers whose messages are also raised as exceptions.
_DUPLICATES = ("torch._subclasses.fake_tensor",)
#: ExecuTorch logs to the root logger, and sets the level of the other one on import, so their messages are filtered.
_FILTERED = ("", "executorch.exir.pass_manager")
_NOISE = ("Torchgen is not able to parse the schema", "was requested for preservation", "PassManager is deprecated")
#: Modules whose warnings concern their internals.
_MODULES = r"(torch|torchao|executorch|tosa_serializer|ethosu|contextlib|copyreg|functools|importlib)(\.|$)"


_lock = threading.Lock()
_inside = 0  # number of open contexts in all threads
_restored = ExitStack()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence other libraries' warnings, and their log messages that duplicate exceptions. Keep log levels set by the user.

    Filters and levels are global. The first thread that enters the context sets them, and the last that exits restores them.
    """
    global _inside
    with _lock:
        if not _inside:
            _restored.enter_context(_silence())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _restored.close()


def _is_relevant(record: logging.LogRecord) -> bool:
    return not any(text in str(record.msg) for text in _NOISE)


@contextmanager
def _silence() -> Iterator[None]:
    level_by_name = {**dict.fromkeys(_LOGGERS, logging.ERROR), **dict.fromkeys(_DUPLICATES, logging.CRITICAL)}
    filtered = [logging.getLogger(name) for name in _FILTERED]
    levels = {logger: logger.level for name in level_by_name if not (logger := logging.getLogger(name)).level}
    with warnings.catch_warnings():
        for category in (FutureWarning, UserWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category, module=_MODULES)
        for logger in levels:
            logger.setLevel(level_by_name[logger.name])
        for logger in filtered:
            logger.addFilter(_is_relevant)
        try:
            yield
        finally:
            for logger in filtered:
                logger.removeFilter(_is_relevant)
            for logger, level in levels.items():
                logger.setLevel(level)
