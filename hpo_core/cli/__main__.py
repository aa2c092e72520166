"""``python -m hpo_core.cli``: the commands that need the core only."""

from hpo_core.cli.app import main

if __name__ == "__main__":
    main()
