"""The acceptance of a node: does sharing work here, each promise with what was expected and what was seen."""
