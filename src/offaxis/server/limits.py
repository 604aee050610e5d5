"""How much the service takes of anybody: sizes, counts and times."""

from dataclasses import dataclass

from offaxis.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """Every bound of the service; what goes beyond is refused at once, with a sentence.

    A request that is within the limits of one must fit where all of them wait, or it would be told to try again for ever.

    Attributes:
        body_bytes: of one request.
        bodies_bytes: of all requests that are being read or decoded, together; beyond it the answer is 503.
        images: in one request.
        pixels: width x height of one image, known before it is decoded.
        seconds_to_send: for a client to send its request, and to take what it is sent.
        seconds_to_answer: from then to the answer.
        queue: images that wait for the network; beyond it the answer is 503.
        batch: images that go through the network together.
        connections: open at a time; more are closed.
        retry_after: seconds that a client is asked to wait after a 503.
    """

    body_bytes: int = 16 * 2**20
    bodies_bytes: int = 256 * 2**20
    images: int = 32
    pixels: int = 16_000_000
    seconds_to_send: float = 10.0
    seconds_to_answer: float = 30.0
    queue: int = 256
    batch: int = 32
    connections: int = 1000
    retry_after: int = 1

    def __post_init__(self) -> None:
        if self.images > self.queue:
            raise ArgumentError(
                f"Expected a queue that holds the images of one request but {self.images} images may come in a request and "
                f"only {self.queue} may wait. Let more wait (--queue), or take fewer in a request (--max-images)."
            )
        if self.body_bytes > self.bodies_bytes:
            raise ArgumentError(
                f"Expected `bodies_bytes` to hold the body of one request but a request may have {self.body_bytes:,} bytes and "
                f"all together {self.bodies_bytes:,}. Raise `bodies_bytes`, or lower `body_bytes`."
            )
