"""``nvshare bench fairness``: what tasks that compute and think get of a card, against what they could get."""
