"""Errors of the protocol.

    ProtocolError              never raised itself
    ├── LocalProtocolError     we broke a rule: a bug on this machine
    └── RemoteProtocolError    bytes from outside break a rule; the message names the field
        ├── InvalidManifest
        ├── InvalidInvite
        └── IncompatibleVersion

Remote faults inside a running swarm are ordinary, so there they are values (`admission.Rejected`), not
exceptions; these are raised only where bytes are decoded. Messages are one sentence and fit to be shown to a
person.
"""


class ProtocolError(Exception):
    """Base of all protocol errors."""


class LocalProtocolError(ProtocolError):
    """This machine used the protocol wrongly."""


class RemoteProtocolError(ProtocolError):
    """Bytes from outside break the protocol."""


class InvalidManifest(RemoteProtocolError):
    """A run manifest that cannot be accepted."""


class InvalidInvite(RemoteProtocolError):
    """An invite that cannot be read."""


class IncompatibleVersion(RemoteProtocolError):
    """Made for another version of the protocol."""
