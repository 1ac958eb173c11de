from engine.schedule.action import Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.grid import grid


def test_grids_are_as_drawn(golden):
    drawings = [
        ("gpipe p=3 m=3", grid(build("gpipe", 3, 1, 3))),
        ("1f1b p=4 m=8", grid(build("1f1b", 4, 1, 8))),
        ("interleaved p=2 v=2 m=4", grid(build("interleaved", 2, 2, 4))),
        ("a fault", grid(build("1f1b", 2, 1, 2), fault=Action(Kind.BACKWARD, 1, 0))),
        ("cut", grid(build("1f1b", 2, 1, 4), width=6)),
    ]
    golden("schedule_grids.txt", "\n".join(f"{name}\n{text}\n" for name, text in drawings))


def test_the_grid_is_as_wide_as_the_step():
    lines = grid(build("1f1b", 4, 1, 8)).splitlines()
    assert len(lines) == 4
    cells = len(lines[0].split("|")[1]) / len("(0)".center(5))
    assert cells == (8 + 3) * 3


def test_durations_are_the_callers():
    assert len(grid(build("gpipe", 1, 1, 1), duration=lambda a: 5).split("|")[1]) == 10 * 5


def test_transfers_take_no_room():
    plain = build("interleaved", 2, 2, 4)
    assert grid(add_comm(plain)) == grid(plain)


def test_a_program_without_actions_has_empty_rows():
    assert grid(build("1f1b", 2, 1, 1).with_stages([[], []])) == "stage 0  ||\nstage 1  ||"


def test_the_27th_chunk_of_a_stage_begins_the_alphabet_again():
    """A stage's chunks are told apart by letters, twenty-six of them."""
    row = grid(build("interleaved", 1, 27, 1)).splitlines()[0]
    assert row.count("0a") == 2 * row.count("0b")
