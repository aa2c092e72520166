"""Entry point of ``hpo``, and ``python -m hpo_flows``."""

from hpo_flows.early_interrupt import end_at_interrupt, raise_at_interrupt


def main() -> None:
    """Import the commands, which takes a second, and run one."""
    end_at_interrupt()
    from hpo_flows.command import main

    raise_at_interrupt()
    main()


if __name__ == "__main__":
    main()
