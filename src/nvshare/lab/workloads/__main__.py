import sys

from nvshare.lab.workloads.program import main

sys.exit(main())
