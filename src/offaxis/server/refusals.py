"""Why a request is not answered, as HTTP says it."""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that gets a status and a sentence instead of predictions.

    Attributes:
        status: the HTTP status.
        reason: the sentence; it names neither paths nor code.
        retry_after: seconds to wait, where trying again makes sense.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after = status, reason, retry_after


def busy(retry_after: int) -> Refusal:
    """Too much is waiting already."""
    return Refusal(503, "The service has as much to do as it can hold: try again in a moment.", retry_after)
