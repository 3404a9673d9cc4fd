from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.dashboard.patterns import anywhere, escaped, matcher, regex
from tests.dashboard.runs import ODD_KEYS

LETTERS = st.text(alphabet="ab/.*?[]!-^\\ ", max_size=8)


@given(LETTERS, st.text(alphabet="ab/.[]!-^\\ ", max_size=8))
def test_an_expression_matches_what_the_registrys_pattern_matches(pattern: str, key: str) -> None:
    """Templates and registries read one pattern alike."""
    found = re.fullmatch(regex(pattern), key, re.DOTALL) is not None
    assert found == fnmatch.fnmatchcase(key, pattern)


@given(st.text(max_size=20), st.text(max_size=20))
def test_an_escaped_text_matches_itself_alone(text: str, other: str) -> None:
    """No character of a key has a meaning of its own."""
    assert re.fullmatch(escaped(text), text)
    assert (re.fullmatch(escaped(text), other) is not None) == (text == other)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_are_matched_from_behind_a_slash(key: str) -> None:
    """A child's key is matched by the pattern of the bare one, and only then."""
    pattern = "".join(f"[{char}]" if char in "*?[" else char for char in key)
    assert matcher(pattern)(key)
    assert matcher(pattern)(f"val/{key}")
    assert not matcher(f"/{pattern}")(f"val/{key}")
    assert not matcher(pattern)(f"{key}x")


def test_counts_of_non_finite_values_are_matched_by_their_name_only() -> None:
    """``*loss*`` draws losses, not how often they were no numbers."""
    assert not matcher("*loss*")("loss/nonfinite")
    assert matcher("*/nonfinite")("val/loss/nonfinite")


def test_expressions_have_no_flags_of_python() -> None:
    """The same expression is given to Prometheus, W&B and TensorBoard."""
    assert anywhere("a*[!b]?.c") == r"(?:.*\/)?a.*[^b].\.c"
