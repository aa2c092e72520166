"""``python -m hpo_core.cli``: the commands that need the core only."""

from hpo_core.cli.app import app, run

if __name__ == "__main__":
    run(app)
