"""``python -m sparrow_core.cli``."""

import sys

from sparrow_core.cli.app import main

sys.exit(main())
