"""`python -m ntl` is the program `ntl`."""

import sys

from .cli import main

sys.exit(main())
