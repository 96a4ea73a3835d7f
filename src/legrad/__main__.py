"""`python -m legrad` is the command `legrad`."""

import sys

from legrad.cli import main

sys.exit(main())
