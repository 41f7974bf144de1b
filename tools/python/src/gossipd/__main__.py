"""``python -m gossipd`` is the command ``gossipd``."""

import sys

from .command import main

sys.exit(main())
