"""pytorch-add.py with 14000 x 14000 matrices, 4000 times with 100 ms of sleep after each: about 4 GiB, mostly idle."""

import runpy
import sys
from pathlib import Path

main = runpy.run_path(str(Path(__file__).with_name("pytorch-add.py")))["main"]
sys.exit(main(n=14000, iterations=4000, sleep=0.1, cached=1))
