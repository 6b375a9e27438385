"""One peer, running: the effects that the protocol asks for, on the swarm, the worker and the disk."""
