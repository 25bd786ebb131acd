"""The round as a transaction: phases, plans, acceptance, events, and the order of side effects."""
