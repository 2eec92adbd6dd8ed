"""``python -m ethorch.cli``."""

import sys

from ethorch.cli.app import main

sys.exit(main())
