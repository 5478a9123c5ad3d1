"""What performs the work: agents, tools, sessions and the one loop that drives them."""
