"""``python -m offaxis`` is the program ``offaxis``."""

from offaxis.cli import main

if __name__ == "__main__":
    main()
