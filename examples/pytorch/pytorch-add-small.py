"""pytorch-add.py with 14000 x 14000 matrices, 40000 times: about 4 GiB of GPU memory, always busy."""

import runpy
import sys
from pathlib import Path

main = runpy.run_path(str(Path(__file__).with_name("pytorch-add.py")))["main"]
sys.exit(main(n=14000, iterations=40000, cached=1))
