"""What all peers of a run must agree on.

Rules of this folder: no clock, no I/O, no randomness, no environment, no logging, no torch, no hivemind.
`now` and entropy are arguments; whatever two peers must agree on is an integer; invalid input changes
nothing; a decision returns its reason. `protocol/README.md` is the specification.
"""

PROTOCOL_VERSION = 1
"""Part of every wire name and record key, so that peers of different versions never share a swarm."""
