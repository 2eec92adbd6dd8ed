"""External programs that some tests require, with ``pytest.mark.tools(...)``.

A test without its programs is skipped, with the packages to install as the reason. If ETHORCH_REQUIRE_TOOLS is set, as by
``.ci/run``, it fails.
"""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRE = "ETHORCH_REQUIRE_TOOLS"

#: Tool -> its commands, any of which serves, and the Debian package that has one.
TOOLS = {
    "aarch64-gcc": (("aarch64-linux-gnu-g++",), "g++-aarch64-linux-gnu"),
    "arm-gcc": (("arm-none-eabi-gcc",), "gcc-arm-none-eabi"),
    "browser": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "c++": (("g++", "clang++", "c++"), "g++"),
    "clang": (("clang++",), "clang"),
    "cmake": (("cmake",), "cmake"),
    "make": (("make",), "make"),
    "ninja": (("ninja",), "ninja-build"),
    "qemu-aarch64": (("qemu-aarch64",), "qemu-user"),
    "qemu-arm": (("qemu-system-arm",), "qemu-system-arm"),
}


def find_tool(name: str) -> str | None:
    """Return the path of a tool's command, or None if the tool is not installed."""
    return next(filter(None, map(shutil.which, TOOLS[name][0])), None)


def require_tools(*names: str) -> None:
    """Skip the running test if a tool is not installed, or fail it if ETHORCH_REQUIRE_TOOLS is set."""
    packages = [TOOLS[name][1] for name in names if find_tool(name) is None]
    if packages:
        reason = f"a tool is not installed: apt-get install {' '.join(packages)}"
        if os.environ.get(REQUIRE):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
