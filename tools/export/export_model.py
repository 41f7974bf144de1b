#!/usr/bin/env python3
"""Exports a PyTorch module to a TorchScript file that gossipd trains: `gossipd export` without
having installed the Python package, which lies in tools/python. Needs torch and numpy.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../python/src"))

from gossipd.export import main  # noqa: E402  (the path comes first)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "export_model.py"))
