"""Which of the waiting messages become one run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.notes import BusyMode
from bridge.store.base import Waiting


def run_of(head: Waiting) -> str:
    """The id of the run that answers a message: that of the run which took it, else made of its number."""
    return head.run or f"r{head.seq}"


def first_batch(
    waiting: Sequence[Waiting], mode: BusyMode, alone: Callable[[Waiting], bool]
) -> tuple[Waiting, ...]:
    """The oldest message, with those that belong to it: what an earlier process put together with it, the
    other parts of its album, or in the mode `collect` all that wait. `alone`: a queued command, which
    nothing is put together with."""
    head = waiting[0]
    run = run_of(head)
    taken = [one for one in waiting if one.run == run and one is not head]
    if taken or head.run is not None:
        return (head, *taken)
    if alone(head):
        return (head,)
    batch = [head]
    for one in waiting[1:]:
        if one.run is not None or alone(one):
            break
        if one.inbound.address != head.inbound.address:
            break  # sessions may span chats: nobody is answered where they did not write
        if mode != "collect" and not same_album(batch[-1], one):
            break
        batch.append(one)
    return tuple(batch)


def same_album(one: Waiting, other: Waiting) -> bool:
    first, second = one.inbound, other.inbound
    return bool(first.album) and (first.album, first.address, first.sender.id) == (
        second.album,
        second.address,
        second.sender.id,
    )
