"""What a state of a logger is made of, checked before anything of it is taken over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from distmetrics import reductions
from distmetrics.errors import InvalidValue
from distmetrics.exact import LIMBS
from distmetrics.reductions import Counter, Reduction
from distmetrics.window.labels import MAX_STEP, mark_of

VERSION = 1
_MOST = 1 << 63


def check(state: object) -> None:
    """Raise where a value is not what `Logger.state_dict` returns.

    Raises:
        InvalidValue: it names the field, what it holds and what belongs there.
    """
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        raise InvalidValue(
            f"load_state_dict takes what state_dict returned (version {VERSION}), not {state!r:.80}"
        )
    streams = _field(state, "streams", "the state", _is_mapping, "a dict of streams")
    for name, saved in streams.items():
        where = f"streams[{name!r}]"
        if not isinstance(name, str) or not isinstance(saved, Mapping):
            _refuse(where, saved, "a dict, under the stream's name")
        _check_stream(saved, where)


def _check_stream(saved: Mapping[str, Any], where: str) -> None:
    _field(saved, "every", where, lambda v: v is None or _is_int(v, 1), "None or steps from 1 on")
    most = mark_of(MAX_STEP)
    rule = "the label that comes next, below that of the highest step"
    if saved.get("watermark") == _MOST - 1:
        rule += "; a rank had closed when this state was taken, so that nothing can follow it"
    _field(saved, "watermark", where, lambda v: _is_int(v, 0, most), rule)
    _field(saved, "latest", where, lambda v: _is_int(v, -1, MAX_STEP), "a step, or -1")
    _field(saved, "unnamed", where, lambda v: isinstance(v, bool), "True or False")
    _field(saved, "steps", where, _are_runs, "rising runs [first, last] of steps")
    _field(saved, "seconds", where, _is_duration, "seconds from 0 on, finite")
    totals = _field(saved, "totals", where, _is_mapping, "a dict of totals by key")
    for key, plain in totals.items():
        _check_state(plain, f"{where}['totals'][{key!r}]")
    opened = _field(saved, "open", where, _is_list, "a list of the open parts")
    for index, part in enumerate(opened):
        _check_part(part, f"{where}['open'][{index}]")


def _check_part(part: Any, where: str) -> None:
    """An open window, or a late step in it."""
    if not _is_mapping(part):
        _refuse(where, part, "a dict")
    _field(part, "late", where, lambda v: v is None or _is_int(v, 0, MAX_STEP), "a step or None")
    keys = _field(part, "keys", where, _is_mapping, "a dict of keys")
    for name, entry in keys.items():
        at = f"{where}['keys'][{name!r}]"
        if not _is_mapping(entry):
            _refuse(at, entry, "a dict")
        declared = _field(entry, "declaration", at, _is_mapping, "a dict")
        reduction = _reduction_of(declared, f"{at}['declaration']")
        _check_state(_field(entry, "state", at, _is_mapping, "a dict"), f"{at}['state']", reduction)


def _reduction_of(declared: Mapping[str, Any], where: str) -> Reduction:
    kind = _field(declared, "reduction", where, lambda v: isinstance(v, str), "a reduction's name")
    params = _field(declared, "params", where, _is_mapping, "a dict of its options")
    try:
        return reductions.make(kind, **params)
    except (TypeError, ValueError) as error:
        _refuse(where, dict(declared), f"a reduction and its options ({error})")


def _check_state(plain: Any, where: str, reduction: Reduction | None = None) -> None:
    """The merged lanes of a key, as `State.to_plain` writes them."""
    if not _is_mapping(plain):
        _refuse(where, plain, "a dict")
    sums = None if reduction is None else reduction.sums
    maxes = None if reduction is None else reduction.maxes
    tallies = None if reduction is None else reduction.tallies
    _field(plain, "units", where, _list_of(_is_hex, sums), _counted("numbers as hex", sums))
    _field(plain, "lo", where, lambda v: _is_int(v, 0, LIMBS), f"a limb below {LIMBS}")
    counts = len(Counter)
    _field(plain, "counters", where, _list_of(_is_count, counts), _counted("counts", counts))
    _field(plain, "maxes", where, _list_of(_is_int64, maxes), _counted("integers", maxes))
    _field(plain, "steps", where, _is_count, "a count")
    _field(plain, "tallies", where, _list_of(_is_tally, tallies), _counted("tallies", tallies))


def _field(
    holder: Mapping[str, Any], name: str, where: str, holds: Callable[[Any], bool], rule: str
) -> Any:
    """A field of a state."""
    if name not in holder:
        raise InvalidValue(f"load_state_dict: {where} has no {name!r}, {_WHOLE}")
    value = holder[name]
    if not holds(value):
        _refuse(f"{where}[{name!r}]" if where != "the state" else repr(name), value, rule)
    return value


_WHOLE = "so that it is no whole state; pass what state_dict returned, unchanged"


def _refuse(where: str, value: Any, rule: str) -> NoReturn:
    raise InvalidValue(
        f"load_state_dict: {where} is {value!r:.80}, where a state has {rule}; pass what "
        "state_dict returned, unchanged"
    )


def _counted(what: str, count: int | None) -> str:
    return f"a list of {what}" if count is None else f"a list of {count} {what}"


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_int(value: Any, least: int, end: int = _MOST) -> bool:
    return type(value) is int and least <= value < end


def _is_count(value: Any) -> bool:
    return _is_int(value, 0)


def _is_int64(value: Any) -> bool:
    return _is_int(value, -_MOST)


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_hex(value: Any) -> bool:
    try:
        int(value, 16)
    except (TypeError, ValueError):
        return False
    return True


def _is_tally(value: Any) -> bool:
    return _is_list(value) and all(
        _is_list(pair) and len(pair) == 2 and _is_int64(pair[0]) and _is_count(pair[1])
        for pair in value
    )


def _list_of(holds: Callable[[Any], bool], count: int | None) -> Callable[[Any], bool]:
    """Whether a value is a list of so many elements of a kind."""

    def whole(value: Any) -> bool:
        return _is_list(value) and count in (None, len(value)) and all(map(holds, value))

    return whole


def _are_runs(value: Any) -> bool:
    """Whether a value is a list of steps, as `Steps.runs`."""
    if not _is_list(value):
        return False
    end = -1
    for run in value:
        if not (_is_list(run) and len(run) == 2 and all(_is_int(s, 0, MAX_STEP) for s in run)):
            return False
        if not end < run[0] <= run[1]:
            return False
        end = run[1] + 1
    return True
