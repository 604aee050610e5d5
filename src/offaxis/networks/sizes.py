"""The checks that both networks make of their arguments."""

from offaxis.errors import ArgumentError


def check_sizes(depth: int, dropout: float, **at_least_one: int) -> None:
    """Refuse a depth that is not 6n + 4, a dropout outside [0, 1), and sizes below one."""
    if depth < 10 or (depth - 4) % 6:
        raise ArgumentError(f"Expected argument `depth` to be 6n + 4 (10, 16, 22, 28, 40, 100, ...) but got {depth}.")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"Expected argument `dropout` to be in [0, 1) but got {dropout}.")
    for name, value in at_least_one.items():
        if value < 1:
            raise ArgumentError(f"Expected argument `{name}` to be at least 1 but got {value}.")
