"""The table of effective time by checkpoint interval, spares and restart time, as Markdown.

python -m bench.faults.simulated
"""

from engine.job.simulate import World, table

EVERY_S, SPARES, RESTART_S = (60, 300, 900), (8, 16, 64), (30, 60, 300)


def main() -> None:
    """Print it."""
    print("| checkpoint every | spares | restart | effective time | faults | waiting for nodes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for every, spares, restart, months in table(
        World(), every_s=EVERY_S, spares=SPARES, restart_s=RESTART_S
    ):
        print(
            f"| {every:g} s | {spares} | {restart:g} s | {months.effective:.2%} "
            f"| {months.faults} | {months.lost_to_waiting:.2%} |"
        )


if __name__ == "__main__":
    main()
