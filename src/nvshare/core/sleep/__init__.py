"""Sleep: clients whose contexts are off their cards, who is told to sleep, and who is woken."""
