import sys

from nvshare.bench.gpu.campaign import main

sys.exit(main())
