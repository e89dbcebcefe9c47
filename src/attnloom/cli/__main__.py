"""`python -m attnloom.cli`."""

import sys

from attnloom.cli import main

sys.exit(main())
