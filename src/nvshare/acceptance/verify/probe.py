"""A process that allocates when it is told to, a line of JSON per command.

    python -m nvshare.acceptance.verify.probe driver

{"do": "look"} answers with the card's UUID, what it shows as total and free; {"do": "take", "bytes": N} allocates and
keeps, and answers whether that went well.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from nvshare.bench.compute.program import stand_aside
from nvshare.bench.driver import Context, CudaError, Driver


def answer(context: Context, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "take":
        try:
            context.allocate(command["bytes"])
        except CudaError as error:
            return {"granted": False, "out_of_memory": error.out_of_memory}
        return {"granted": True}
    free, total = context.memory()
    return {"uuid": context.uuid, "free": free, "total": total}


def main() -> int:
    stand_aside()
    context: Context | None = None
    for line in sys.stdin:
        context = context or Context(Driver())
        print(json.dumps(answer(context, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
