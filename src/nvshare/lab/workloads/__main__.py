import sys

from nvshare.bench.workloads.program import main

sys.exit(main())
