"""Run many random networks: ``python -m tests.helpers.random_networks --first 0 --count 2000 --configurations 4``.

Each failure is printed with its configuration and the shrunk network. The exit code is 1 if any network fails. ``--show SEED``
prints a network.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.helpers.random_networks import network
from tests.helpers.random_networks.sweeps import sweep


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.random_networks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, help="seed of the first network (default: a fresh one)")
    parser.add_argument("--count", type=int, default=100, help="how many networks")
    parser.add_argument("--configurations", type=int, default=4, help="how many configurations each network is compiled for")
    parser.add_argument("--show", type=int, help="print the network of this seed")
    options = parser.parse_args(arguments)
    if options.show is not None:
        print(network(options.show))
        return 0
    first = random.SystemRandom().randrange(1 << 31) if options.first is None else options.first
    started = time.time()

    def say(text: str) -> None:
        print(text, flush=True)

    result = sweep(first, options.count, options.configurations, say)
    say(f"{result}; {time.time() - started:.0f} s")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
