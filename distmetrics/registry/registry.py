"""The registry: what each key means, looked up, written down and compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.errors import DeclarationConflict, InvalidType, InvalidValue, UnknownKey
from distmetrics.registry import compare
from distmetrics.registry.keys import nearest, shown
from distmetrics.registry.lookup import look_up, virtual_keys
from distmetrics.registry.metric import IGNORE, Metric
from distmetrics.registry.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rich.table import Table

_DEFAULTS = ("average", "count", "total", "minimum", "maximum", "std", "l2_norm", "same", IGNORE)


class Registry(Vocabulary):
    """What each key means.

    A declaration takes one or more keys: exact names, or case-sensitive patterns with ``*``, ``?``
    and ``[...]`` as in `fnmatch.fnmatchcase` (``*`` matches slashes too). All take the keywords of
    `Described`: ``unit=, help=, group=, replicated_over=, nonfinite=, scaling=``.

    *Precedence*: an exact name beats a pattern, a longer pattern a shorter one; of equally long
    ones the later wins. A key that equals the declared text is always meant, by name:
    ``average("loss[0]")`` covers the key ``loss[0]``, and as a pattern ``loss0``; ``loss[[]0]`` is
    the key ``loss[0]`` alone.

    *Children*: key ``loss`` of child ``val`` is looked up as ``val/loss`` first, then as ``loss``
    (`distmetrics.registry.lookup` has the steps); neither a catch-all ``*`` nor ``*loss`` hides
    the name ``loss``.

    *Referred keys*: a weight, numerator, denominator or `of` is a count unless it is registered
    otherwise, by name or pattern, replicated over what its referrers are. It is found in the same
    call under the name used there.

    *One declaration*: a name declared in two ways is an error. The same pattern again replaces the
    earlier one, and so does a name again that changes its unit, help text, group or scaling class
    only, or that is (or was) ignored.

    Args:
        default: what an unregistered key is: a reduction that needs no options, or "ignore".
        strict: an unregistered key is an error.

    Raises:
        InvalidType: an argument has a wrong type.
        InvalidValue: `default` is none of the accepted names.

    >>> registry = Registry()
    >>> registry.count("*num_pairs", unit="pairs", group="matching")
    >>> registry.average("loss", weight="num_tokens")
    >>> print(registry["val/num_pairs"], registry["loss"], registry["num_tokens"], registry["acc"])
    count() average(weight='num_tokens') count() average()
    >>> registry["acc"].registered
    False
    """

    def __init__(self, default: str = "average", strict: bool = False) -> None:
        if not isinstance(strict, bool):
            raise InvalidType(f"Registry: strict= is True or False, not {shown(strict)}")
        super().__init__()
        self._default = _checked_default(default)
        self._strict = strict

    @property
    def default(self) -> str:
        """What an unregistered key is: the name of a reduction, or "ignore"."""
        return self._default

    @property
    def strict(self) -> bool:
        """Whether an unregistered key is an error."""
        return self._strict

    @property
    def revision(self) -> int:
        """Changes with every declaration, so that what was looked up before is known to be old."""
        return self._declarations.revision

    def __getitem__(self, key: str) -> Metric:
        return self.resolve(key)

    def resolve(self, key: str, prefix: str = "") -> Metric:
        """What a key means in the logger without prefix, or in the child with prefix ``val/``.

        Look-ups are kept, so that asking again costs a dictionary's access.

        Raises:
            UnknownKey: the registry is strict and the key unregistered; names the nearest ones.

        >>> registry = Registry()
        >>> registry.average("loss")
        >>> registry.maximum("val/loss")
        >>> registry.count("*")
        >>> for prefix in ("", "val/", "test/"):
        ...     print(registry.resolve("loss", prefix))
        average()
        maximum()
        average()
        """
        index = self._declarations.index()
        metric = index.found.get((prefix, key))
        if metric is None:
            if not isinstance(key, str):
                raise InvalidType(f"registry: a key is a str, not {shown(key)}")
            metric = look_up(index, key, prefix, self.default)
            if self.strict and not metric.registered:
                raise self._unknown(key, prefix)
            index.found[prefix, key] = metric
        return metric

    def virtual(
        self, key: str, prefix: str = "", children: Iterable[str] = ()
    ) -> tuple[tuple[str, Metric], ...]:
        """The ratios and rates that a logged key serves, as pairs of a name and its metric.

        Nobody logs these, so that no call asks for them: they exist where the keys they need do.
        Names are those of the logger or child with this prefix. A name under a prefix of
        `children`, which holds those of all children, belongs to that child alone:
        ``ratio("val/acc", "num_correct", "n")`` is no key of the parent, although the parent may
        log `num_correct` and `n` too.

        >>> registry = Registry()
        >>> registry.ratio("acc", "num_correct", "n")
        >>> registry.ratio("val/top5", "num_top5", "n")
        >>> [name for name, metric in registry.virtual("n", children=["val/"])]
        ['acc']
        >>> [name for name, metric in registry.virtual("n", "val/")]
        ['acc', 'top5']
        """
        index = self._declarations.index()
        found = {}
        for name, declared in virtual_keys(index, key, prefix, tuple(children)):
            metric = self.resolve(name, prefix)  # a child may declare, or ignore, it in its own way
            if metric.pattern == declared.pattern:
                found[name] = metric
        return tuple(found.items())

    def __contains__(self, key: object) -> bool:
        """Whether a key is registered: declared by name or pattern, or needed by one that is."""
        if not isinstance(key, str):
            return False
        return look_up(self._declarations.index(), key, "", self.default).registered

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._declarations)

    def __len__(self) -> int:
        return len(self._declarations)

    def __repr__(self) -> str:
        return f"Registry(default={self.default!r}, strict={self.strict}, declarations={len(self)})"

    def _unknown(self, key: str, prefix: str) -> UnknownKey:
        index = self._declarations.index()
        known = [*index.names, *index.referred]
        near = nearest(prefix + key, known) or (nearest(key, known) if prefix else [])
        if near:
            names = f"the nearest registered names are {', '.join(map(repr, near))}"
        elif known:
            names = f"registered are {', '.join(map(repr, known[:5]))}"
            names += " and others" if len(known) > 5 else ""
        else:
            names = "nothing is registered"
        return UnknownKey(
            f"key {prefix + key!r} is not registered and the registry is strict; {names}. Register "
            f"it, for instance by registry.average({key!r}), or leave it out by "
            f"registry.ignore({key!r})"
        )

    def declarations(self) -> list[dict[str, Any]]:
        """All declarations in order, as JSON-able dicts without what is left at its default.

        >>> registry = Registry()
        >>> registry.average("loss", weight="n", unit="nats")
        >>> registry.declarations()
        [{'pattern': 'loss', 'reduction': 'average', 'params': {'weight': 'n'}, 'unit': 'nats'}]
        """
        return [metric.declaration() for metric in self]

    @classmethod
    def from_declarations(
        cls,
        declarations: Iterable[Mapping[str, Any]],
        default: str = "average",
        strict: bool = False,
    ) -> Registry:
        """The registry that `declarations` came from.

        Raises:
            InvalidType, InvalidValue, DeclarationConflict: a declaration is malformed, or as in
                `declare`; the message begins with its position.
        """
        registry = cls(default, strict)
        for position, declaration in enumerate(declarations):
            registry._declare_written(position, declaration)
        return registry

    def __reduce__(self) -> tuple[Callable[..., Registry], tuple[Any, ...]]:
        written = self.declarations()
        for metric, declaration in zip(self, written, strict=True):
            reduction = metric.reduction
            if reduction is not None and "function" in reduction.params and reduction.derive:
                declaration["params"] = {"function": reduction.derive}
        return type(self).from_declarations, (written, self.default, self.strict)

    def _declare_written(self, position: int, declaration: Mapping[str, Any]) -> None:
        try:
            self._declare_dict(declaration)
        except (InvalidType, InvalidValue, DeclarationConflict) as error:
            raise type(error)(f"declaration {position}: {error}") from error

    def _declare_dict(self, declaration: Mapping[str, Any]) -> None:
        if not isinstance(declaration, Mapping):
            raise InvalidType(f"a declaration is a dict, not {shown(declaration)}")
        options = dict(declaration)
        kind, pattern = options.pop("reduction", None), options.pop("pattern", None)
        params = options.pop("params", {})
        if not isinstance(kind, str):
            raise InvalidType(f"reduction is the name of a reduction, not {shown(kind)}")
        if not isinstance(params, Mapping):
            raise InvalidType(f"params is a dict of the reduction's options, not {shown(params)}")
        self.declare(kind, [pattern], params, **options)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Registry:
        """The registry that a TOML file holds; `distmetrics.registry.toml` shows the form.

        Raises:
            OSError: the file cannot be read.
            InvalidType, InvalidValue, DeclarationConflict: it is no TOML, or has a declaration that
                is not accepted; the message gives file, line and key.
        """
        from distmetrics.registry import toml

        name = os.fspath(path)
        settings, entries = toml.loads(toml.decoded(Path(path).read_bytes(), name), name)
        try:
            registry = cls(**settings)
        except (InvalidType, InvalidValue) as error:
            raise type(error)(f"{name}: {error}") from error
        for declaration, where in entries:
            try:
                registry._declare_dict(declaration)
            except (InvalidType, InvalidValue, DeclarationConflict) as error:
                raise type(error)(f"{where}: {error}") from error
        return registry

    def to_toml(self) -> str:
        """The registry as TOML, which `from_toml` reads back as it was.

        Raises:
            InvalidValue: a key is derived by a Python function, which no file can hold.

        >>> registry = Registry()
        >>> registry.average("loss", weight="n", unit="nats")
        >>> print(registry.to_toml())
        default = "average"
        strict = false
        <BLANKLINE>
        [metrics]
        loss = {reduction = "average", weight = "n", unit = "nats"}
        <BLANKLINE>
        """
        from distmetrics.registry import toml

        return toml.dumps(self, self.default, self.strict)

    def table(self) -> Table:
        """All keys with what is declared of them, as a table to print with `rich.print`.

        Keys that were not declared, but that others need, come last.
        """
        from distmetrics.registry.table import table

        return table(self)

    def referred(self) -> list[Metric]:
        """What keys are that were not declared, but that others need: weights, for instance."""
        index = self._declarations.index()
        undeclared = (name for name in index.referred if name not in index.names)
        return [replace(self.resolve(name), pattern=name) for name in undeclared]

    def fingerprint(self) -> str:
        """A hash of all that changes values, to compare registries over ranks.

        Two registries have the same one exactly when `difference` finds nothing: units, help
        texts, groups, scaling classes and an order without effect do not count.
        """
        return compare.fingerprint(self, self.default, self.strict)

    def difference(
        self,
        declarations: Iterable[Mapping[str, Any]],
        *,
        default: str = "average",
        strict: bool = False,
        names: tuple[str, str] = ("this registry", "the other"),
    ) -> str | None:
        """What first differs from another registry in a way that changes values; None: nothing.

        Args:
            declarations: the other's `declarations()`.
            default: the other's `default`.
            strict: the other's `strict`.
            names: what the text calls this registry and the other, "rank 0" and "rank 3".

        >>> registry = Registry()
        >>> registry.average("loss", weight="n")
        >>> registry.difference([{"pattern": "loss", "reduction": "count"}])
        "'loss' is average(weight='n') in this registry and count() in the other"
        """
        other = Registry.from_declarations(declarations, default, strict)
        for setting in ("default", "strict"):
            mine, its = getattr(self, setting), getattr(other, setting)
            if mine != its:
                return f"{setting}= is {mine!r} in {names[0]} and {its!r} in {names[1]}"
        return compare.difference(self, other, names)


def _checked_default(value: object) -> str:
    if isinstance(value, str) and value in _DEFAULTS:
        return value
    kind = InvalidValue if isinstance(value, str) else InvalidType
    accepted = ", ".join(map(repr, _DEFAULTS))
    raise kind(f"Registry: default= is one of {accepted}, not {shown(value)}")
