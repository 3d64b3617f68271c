"""What an outer CUDA_VISIBLE_DEVICES leaves to choose from, read as the driver reads it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_UUIDS = ("GPU-", "MIG-")


def bound(value: str | None, cards: Sequence[str]) -> tuple[str, ...]:
    """The cards, by UUID, that a process with this CUDA_VISIBLE_DEVICES may use, in its order.

    ``cards`` are all of them in the order that indices count in. Not set: all. As in the driver, everything after the
    first entry that names no card is ignored, and naming one twice leaves none; so the answer is never too large.
    """
    if value is None:
        return tuple(cards)
    found: list[str] = []
    for entry in value.split(","):
        card = _card(entry.strip(), cards)
        if card is None:
            break
        found.append(card)
    return tuple(found) if len(set(found)) == len(found) else ()


def _card(entry: str, cards: Sequence[str]) -> str | None:
    """An index, a UUID, or the beginning of just one."""
    if entry.isascii() and entry.isdecimal():
        return cards[int(entry)] if int(entry) < len(cards) else None
    if not entry.startswith(_UUIDS):
        return None
    matching = [card for card in cards if card.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None


class BadChoice(ValueError):
    """A choice of GPUs that cannot be; the text says what there is."""


def choose(text: str, cards: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """``--gpus 0,2``: indices (or UUIDs) of all cards, which must be allowed. ``BadChoice`` names what is wrong."""
    chosen: list[str] = []
    for entry in text.split(","):
        card = _card(entry.strip(), cards)
        if card is None:
            known = (
                f"there is GPU {_indices(cards, cards)} only"
                if len(cards) == 1
                else f"there are {_indices(cards, cards)}"
            )
            raise BadChoice(f"GPU {entry.strip() or '(nothing)'} does not exist: {known}")
        if card not in allowed:
            raise BadChoice(
                f"GPU {entry.strip()} is outside of CUDA_VISIBLE_DEVICES, which allows {_indices(allowed, cards)}"
            )
        if card in chosen:
            raise BadChoice(f"GPU {entry.strip()} is named twice")
        chosen.append(card)
    return tuple(chosen)


def _indices(cards: Sequence[str], order: Sequence[str]) -> str:
    return ", ".join(str(order.index(card)) for card in cards) or "none"
