"""``nvshare verify``: does sharing work on this node? Each promise is a check."""
