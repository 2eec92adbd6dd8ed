"""Other libraries' noise kept away: what torch, torchao and ExecuTorch print on import and while they export.

None of it is about the user's model. Their errors, ethorch's own messages and warnings of the user's code stay.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: Loggers that complain of kernels that a CPU has no use for, of deprecated calls among themselves, and of passes they skip.
_LOGGERS = ("torchao", "torch.utils._pytree", "torch.export", "torch._export", "torch.fx", "executorch")
#: What these log comes as an exception too, which is told in a sentence.
_TOLD = ("torch._subclasses.fake_tensor",)
#: Modules whose warnings are about their own insides.
_MODULES = r"(torch|torchao|executorch|tosa_serializer|ethosu|contextlib|copyreg|functools|importlib)(\.|$)"


_lock = threading.Lock()
_inside = 0  # how many contexts of all threads are open
_restored = ExitStack()


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, other libraries say only what is an error, and nothing twice. Levels that the user has set are kept.

    Filters and levels are the process's, so the first of several threads sets them and the last restores them.
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


@contextmanager
def _silence() -> Iterator[None]:
    wanted = {**dict.fromkeys(_LOGGERS, logging.ERROR), **dict.fromkeys(_TOLD, logging.CRITICAL)}
    levels = {logger: logger.level for name in wanted if not (logger := logging.getLogger(name)).level}
    with warnings.catch_warnings():
        for category in (FutureWarning, UserWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category, module=_MODULES)
        for logger in levels:
            logger.setLevel(wanted[logger.name])
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)
