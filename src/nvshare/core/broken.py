"""What is raised when the scheduler contradicts itself: a fault of this program, whatever clients send."""

from __future__ import annotations

from nvshare.core.state import Node


class InvariantBroken(AssertionError):
    """A named invariant does not hold. The message ends with the recent events and what was answered."""

    def __init__(self, name: str, detail: str, node: Node) -> None:
        story = "\n".join(
            f"  {event}\n" + "".join(f"    -> {command}\n" for command in commands) for event, commands in node.story
        )
        super().__init__(f"{name}: {detail}\nrecent events, oldest first:\n{story}")
        self.name = name
