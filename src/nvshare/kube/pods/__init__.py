"""Live quotas: the pods of this node as the API server tells of them, passed on to the scheduler.

``watch.py`` lists and watches through ``api.py``; ``desired.py`` says what a pod should have; ``store.py`` keeps it;
``apply.py`` tells the scheduler what changed; ``complaints.py`` tells owners of pods what cannot be used.

A process of its own, beside the scheduler: no trouble with the API can delay a decision.
"""
