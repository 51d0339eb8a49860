"""python -m farandole: the command line."""

import sys

from farandole.commands import main

if __name__ == "__main__":
    sys.exit(main())
