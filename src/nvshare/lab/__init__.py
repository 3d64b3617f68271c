"""Keep the module names of earlier releases alive."""
