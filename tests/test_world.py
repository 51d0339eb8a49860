from __future__ import annotations

import threading
from contextlib import suppress

import farandole
from farandole.world import SilentLink, World, entered


def test_outside_of_a_ring_there_is_a_world_of_one() -> None:
    world = farandole.current_world()
    assert (world.rank, world.size, world.local_rank, world.is_leader) == (0, 1, 0, True)


def test_the_neighbours_of_a_ring() -> None:
    ring = [World(rank=rank, size=3) for rank in range(3)]
    assert [world.right for world in ring] == [1, 2, 0]
    assert [ring[world.right].left for world in ring] == [0, 1, 2]
    assert [world.is_leader for world in ring] == [True, False, False]


def test_a_world_is_current_for_the_body_only_even_when_it_fails() -> None:
    with suppress(KeyError), entered(World(rank=2, size=3)):
        assert farandole.current_world().rank == 2
        raise KeyError
    assert farandole.current_world().rank == 0


def test_the_world_of_one_thread_is_not_that_of_another() -> None:
    seen: list[int] = []
    with entered(World(rank=2, size=3)):
        thread = threading.Thread(target=lambda: seen.append(farandole.current_world().rank))
        thread.start()
        thread.join()
    assert seen == [0]


def test_a_silent_link_takes_everything_and_asks_nothing() -> None:
    link = SilentLink()
    link.tell(object())
    assert not link.stop_requested()
