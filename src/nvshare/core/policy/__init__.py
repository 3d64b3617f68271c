"""The scheduler's policies, each named after what the field calls it. They decide; they change nothing."""
