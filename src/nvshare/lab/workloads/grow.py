"""``python -m nvshare.lab.workloads.grow``."""

import sys

from nvshare.bench.workloads.grow import main

if __name__ == "__main__":
    sys.exit(main())
