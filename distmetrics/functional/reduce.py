"""The functions: dicts of scalars in, dicts of 0-dim tensors out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

import torch

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.functional.channel import Call, Result, reduce
from distmetrics.presets import matching_counts
from distmetrics.registry import Registry
from distmetrics.registry.keys import checked_key, shown
from distmetrics.values import is_scalar

_INT64 = torch.iinfo(torch.int64)
_CPU = torch.device("cpu")


def reduce_dict(input_dict: Mapping[str, Any], average: bool = True) -> dict[str, torch.Tensor]:
    """The average, or the sum, of every key over the ranks that have it.

    Keys are matched by name: ranks may have different ones, in any order, and get all of them
    back, their own first. Dtypes and devices may differ between ranks.

    Args:
        input_dict: key to scalar: a number, or a tensor or array of one element, of any real
            dtype and on any device; None is left out. It is not changed.
        average: False sums.

    Ranks: all; every rank gets the same values.
    Collective: 3, whatever the number of keys, and 2 more where a key is new; on a group of its
        own, which the first call makes.

    Returns:
        0-dim tensors without a graph, on the device of the rank's own value; keys that only other
        ranks have on that of its first one. A float64 on any rank gives float64, other floats
        float32; where all ranks have integers or bools a sum is int64 and an average float64. A
        sum is exact and rounded once; an average is its quotient by the number of ranks that have
        the key, in float64.

    Raises:
        InvalidType, InvalidValue: a value is not accepted, or a sum of integers exceeds int64.
        DistmetricsError: another rank refused a value, or made another call.
        NotInitialized: several processes were launched, but there is no process group.
        PeerTimeoutError, PeerLostError: a rank did not come, or is gone.

    Example:
        >>> reduce_dict({"loss": torch.tensor(0.5), "correct": torch.tensor([3])})
        {'loss': tensor(0.5000), 'correct': tensor(3., dtype=torch.float64)}
        >>> reduce_dict({"correct": torch.tensor(3)}, average=False)
        {'correct': tensor(3)}
    """
    name = f"reduce_dict(average={bool(average)})"
    call = Call(name, name, lambda: Registry("average" if average else "count"))
    devices: dict[str, torch.device] = {}

    def outputs(registry: Registry) -> Mapping[str, Any]:
        given = _scalars(input_dict)
        devices.update(_devices(given))
        return given

    found = reduce(call, outputs)
    own = [key for key in devices if key in found]
    return _tensors({key: found[key] for key in (*own, *found)}, devices)


def reduce_scalar_outputs_for_logging(
    return_dict: MutableMapping[str, Any],
    skip_keys: Collection[str] = ("loss",),
    registry: Registry | None = None,
) -> MutableMapping[str, Any]:
    """The outputs of a model, each 0-dim tensor in them replaced by its reduction over all ranks.

    A key is reduced as the registry says. Of those that it does not know, keys that end in one of
    `distmetrics.presets.MATCHING_COUNT_SUFFIXES` are counts, and summed; the others are averaged
    over the ranks that have them. All else is left as it is: the skipped keys and their graphs,
    tensors of other shapes, what is no tensor, and keys whose reduction gives no single number
    (histograms, say).

    Args:
        return_dict: the outputs; changed in place, unless an error is raised. Keys that only
            other ranks have are added.
        skip_keys: keys that are left alone.
        registry: what the keys mean, the same on every rank. A weight that it names must be among
            the outputs.

    Ranks: all; every rank gets the same values.
    Collective: 3, whatever the number of keys, and 2 more where a key is new or where ranks differ
        in a value that the registry says is the same; on a group of its own.

    Returns:
        `return_dict`. The dtypes and devices of results are those of `reduce_dict`.

    Raises:
        InvalidType, InvalidValue, UnknownKey: a value is not accepted.
        DistmetricsError: another rank refused a value, or gave another registry.
        NotInitialized: several processes were launched, but there is no process group.
        PeerTimeoutError, PeerLostError: a rank did not come, or is gone.

    Example:
        >>> outputs = {"loss": torch.ones((), requires_grad=True), "num_pairs": torch.tensor(3)}
        >>> _ = reduce_scalar_outputs_for_logging(outputs)
        >>> outputs
        {'loss': tensor(1., requires_grad=True), 'num_pairs': tensor(3)}
    """
    if registry is not None and not isinstance(registry, Registry):
        raise InvalidType(f"registry= is a Registry, not a {type(registry).__name__}")
    declared = Registry() if registry is None else registry
    name = "reduce_scalar_outputs_for_logging"
    call = Call(name, f"{name}/{declared.fingerprint()}", lambda: _with_presets(declared))
    devices: dict[str, torch.device] = {}

    def outputs(known: Registry) -> Mapping[str, Any]:
        if not isinstance(return_dict, MutableMapping):
            raise InvalidType(f"{name} takes a dict of outputs, not {shown(return_dict)}")
        given = {
            key: value
            for key, value in return_dict.items()
            if isinstance(value, torch.Tensor) and value.dim() == 0 and key not in skip_keys
        }
        _check_keys(given, name)
        devices.update(_devices(given))
        return given | _weights(given, return_dict, known)

    found = reduce(call, outputs)
    changed = {
        key: result
        for key, result in found.items()
        if key in devices or not (key in return_dict or key in skip_keys)
    }
    return_dict.update(_tensors(changed, devices))
    return return_dict


def _scalars(given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidType(f"reduce_dict takes a dict of scalars, not {shown(given)}")
    scalars = {key: value for key, value in given.items() if value is not None}
    _check_keys(scalars, "reduce_dict")
    for key, value in scalars.items():
        if not is_scalar(value):
            raise InvalidType(
                f"key {key!r}: reduce_dict takes numbers, and tensors of one element and a real "
                f"dtype that hold data, not {_shown(value)}; make it one number before"
            )
    return scalars


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype} on {value.device}"
    return f"{type(value).__name__} {str(value)[:60]!r}"


def _check_keys(given: Mapping[Any, Any], where: str) -> None:
    for key in given:
        checked_key(key, where)


def _weights(
    given: Mapping[str, Any], outputs: Mapping[str, Any], registry: Registry
) -> dict[str, Any]:
    """The weights that the registry names and that are not given anyway."""
    reductions = [registry.resolve(key).reduction for key in given]
    names = [each.params.get("weight") for each in reductions if each is not None]
    return {
        name: outputs[name]
        for name in names
        if name is not None and name not in given and name in outputs and is_scalar(outputs[name])
    }


def _with_presets(registry: Registry) -> Registry:
    """The registry and, below its own declarations, the counts by suffix."""
    presets = Registry()
    matching_counts(presets)
    declarations = [*presets.declarations(), *registry.declarations()]
    return Registry.from_declarations(declarations, registry.default, registry.strict)


def _devices(given: Mapping[str, Any]) -> dict[str, torch.device]:
    return {
        key: value.device if isinstance(value, torch.Tensor) else _CPU
        for key, value in given.items()
    }


def _tensors(
    results: Mapping[str, Result], devices: Mapping[str, torch.device]
) -> dict[str, torch.Tensor]:
    """The results on their devices, by one transfer for each device and dtype."""
    first = next(iter(devices.values()), _CPU)
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for key, result in results.items():
        if isinstance(result.value, int) and not _INT64.min <= result.value <= _INT64.max:
            raise InvalidValue(
                f"key {key!r}: {result.value} does not fit into int64; give it as a float"
            )
        groups.setdefault((devices.get(key, first), result.dtype), []).append(key)
    found: dict[str, torch.Tensor] = {}
    for (device, dtype), keys in groups.items():
        values = torch.tensor([results[key].value for key in keys], dtype=dtype).to(device)
        found.update(zip(keys, values.unbind(), strict=True))
    return {key: found[key] for key in results}
