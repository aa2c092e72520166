"""Entry point of ``hpo``, and ``python -m hpo_flows``."""

from hpo_flows.early_interrupt import end_at_interrupt, raise_at_interrupt


def main() -> None:
    """Import the commands, which takes a second, and run one."""
    end_at_interrupt()
    from hpo_core.cli.app import run
    from hpo_flows.command import app

    raise_at_interrupt()
    run(app)


if __name__ == "__main__":
    main()
