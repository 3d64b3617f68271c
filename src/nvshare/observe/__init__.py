"""What the scheduler knows, as metrics: pure functions over its status, and the exporter around them."""
