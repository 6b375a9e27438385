"""The network: libp2p daemon, DHT node, streams, all-reduce and the transfer of state.

The only folder that imports hivemind, and within it only `engine` reaches for what hivemind does not publish.
"""
