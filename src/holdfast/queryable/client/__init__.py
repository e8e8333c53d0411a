"""Who asks: the clients, and what both of them share."""
