"""The entry point of ``python -m ethorch.cli``."""

import sys

from ethorch.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
