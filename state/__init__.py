"""The ledgers: pure projections of events."""
