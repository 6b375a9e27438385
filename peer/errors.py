"""The errors a person running a peer can meet, each carrying one sentence that says what to do next."""


class PeerError(Exception):
    """Something that ends a command for a reason its user can act on.

    The message is shown as it is, without a traceback: what happened, why, and a remedy at its end.
    """


class EndedUnderWay(PeerError):
    """A peer that had started could not go on."""


class WorkerFailed(PeerError):
    """The worker process could not start, or ended without being asked to."""


class DataUnavailable(PeerError):
    """The training data of a run cannot be used on this machine."""


class CheckpointFailed(PeerError):
    """A checkpoint could not be written; the earlier ones are untouched."""


class WrongRun(PeerError):
    """Saved files belong to another run than the one being joined."""


class ExportFailed(PeerError):
    """An exported model could not be written, or is not one that can be loaded."""


class NotEnoughMemory(PeerError):
    """The model of a run does not fit in this machine's memory."""
