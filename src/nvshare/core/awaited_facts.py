"""What the scheduler waits for before it decides: the facts of a pod, and a sample of the cards.

A registration waits until the pod watch has told of its pod, so that the pod's quota holds from the beginning. A
client's first request for memory on a card waits for a sample of the card, so that what its context and unmanaged
processes take is known before memory is given out. Each of them goes on at its deadline at the latest, whatever is
missing; and both are bounded by the number of clients and of cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nvshare.core.commands import AwaitPod, SampleCards
from nvshare.core.events import ClientRegistered, MemoryRequested
from nvshare.core.policy.membership import pod_group
from nvshare.core.state import Attachment, FirstRequests, Node, WaitingRegistration

POD_WAIT = 1.5  # seconds until a registration goes on without its pod; the library gives up after two
SAMPLE_WAIT = 0.2  # seconds until a client's first request goes on without a sample
MAX_REQUESTS = 64  # of one client on one card that wait for a sample


class AwaitedFacts:
    """Each kind waits equally long, so the first that is in line is the first that is due."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def next(self) -> float | None:
        """The next deadline, that of holders of leases included."""
        node = self.node
        due = [] if node.leases_awaited is None else [node.leases_awaited]
        if node.registering:
            due.append(next(iter(node.registering.values())).by)
        if node.first_requests:
            due.append(next(iter(node.first_requests.values())).by)
        return min(due, default=None)

    def is_due(self) -> bool:
        at = self.next()
        return at is not None and at <= self.node.now

    def forget(self, client: int, gpus: Iterable[str] = ()) -> None:
        """A client is gone that had these cards."""
        self.node.registering.pop(client, None)
        for gpu in gpus:
            self.node.first_requests.pop((client, gpu), None)

    # --- for the facts of a pod

    def holds(self, event: ClientRegistered) -> bool:
        """Whether a registration has to wait. Only where a pod watch has told of all pods, and so tells of each."""
        pod = event.process.pod
        if pod is None or not self.node.pods_listed or self.node.knows_pod(pod_group(pod)):
            return False
        self.node.registering[event.client] = WaitingRegistration(event, self.node.now + POD_WAIT)
        self.node.commands.append(AwaitPod(event.client))
        return True

    def registrations_of(self, pod: str) -> list[ClientRegistered]:
        """Those that waited for this pod."""
        here = [one.event for one in self.node.registering.values() if one.event.process.pod == pod]
        for event in here:
            del self.node.registering[event.client]
        return here

    def registrations_due(self) -> Iterator[ClientRegistered]:
        """Those that have waited long enough."""
        line = self.node.registering
        while line and (first := next(iter(line.values()))).by <= self.node.now:
            del line[first.event.client]
            yield first.event

    # --- for a sample of the cards

    def requests(self, attachment: Attachment, event: MemoryRequested) -> list[MemoryRequested]:
        """What can be answered now that this request has come: nothing while it waits, else all that waited, and it."""
        line, key = self.node.first_requests, (attachment.client.id, attachment.gpu.uuid)
        if not attachment.asked_memory:
            attachment.asked_memory = True
            self.node.samples_ordered += 1
            line[key] = FirstRequests(attachment, self.node.samples_ordered, self.node.now + SAMPLE_WAIT)
            self.node.commands.append(SampleCards(self.node.samples_ordered))
        waiting = line.get(key)
        if waiting is None:
            return [event]
        waiting.events.append(event)
        return line.pop(key).events if len(waiting.events) > MAX_REQUESTS else []

    def requests_due(self, sample: int = 0) -> Iterator[FirstRequests]:
        """Those that have waited long enough, and those for which this sample or an earlier one was ordered."""
        line = self.node.first_requests
        while line and ((first := next(iter(line.values()))).by <= self.node.now or first.sample <= sample):
            del line[first.attachment.client.id, first.attachment.gpu.uuid]
            yield first

    def order_again(self) -> None:
        """Requests that came while a sample was taken wait for the next one."""
        if self.node.first_requests:
            self.node.commands.append(SampleCards(self.node.samples_ordered))
