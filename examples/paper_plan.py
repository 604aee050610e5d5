"""A table of the paper as a plan in Python: the trainings and evaluations that it needs, one by one, and its files."""

from pathlib import Path

from offaxis.paper.commands import Command, Reproduction
from offaxis.paper.items import ITEMS
from offaxis.paper.settings import TINY


def plan(chain: Reproduction, names: tuple[str, ...]) -> list[Command]:
    """Return the commands of some tables or figures, each once; trainings come before what needs them."""
    return list({step.words: step for name in names for step in ITEMS[name].steps(chain)}.values())


def main(out: str = "paper", names: tuple[str, ...] = ("classification", "histograms")) -> None:
    folder = Path(out)
    settings = TINY.replace(seeds=(0,))  # PAPER or LAPTOP for numbers that mean something
    chain = Reproduction(settings, folder, folder / "runs")
    for step in plan(chain, names):
        print("done already:" if step.done else "running:", step.command)  # the command can run on any machine
        if not step.done:
            step.run(quiet=True)
    for name in names:
        for path in ITEMS[name].finish(chain, folder / name):
            print(path)


if __name__ == "__main__":
    main()
