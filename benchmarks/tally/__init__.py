"""How long a peer takes to tally the ballots of a term, by their number."""
