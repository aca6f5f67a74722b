"""One regular expression for how a tokenizer.json cuts text before it merges bytes.

Hugging Face runs its pre-tokenizers one after the other, each on the pieces of the one before, and
keeps what no pattern matches as a piece of its own; tiktoken runs a single pattern and silently
drops what it does not match. So a pattern gets a last alternative that takes any gap whole, and
DeepSeek's three splits in sequence become one pattern in which no alternative can reach across a
boundary that an earlier split has made. Anything else is Unsupported and left to `tokenizers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Unsupported(Exception):
    """This tokenizer is not byte-level BPE in the form that tiktoken computes."""


# What ByteLevel(use_regex=true) applies by itself: GPT-2's pattern, from the tokenizers source.
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_TAGGED: Final = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""

# DeepSeek V3, R1, V3.1 and V4: numbers, then CJK runs, then words.
_DEEPSEEK: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    _TAGGED + "|[^\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[" + "\r\n]*"
    r"|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
)


def pattern_of(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """The pattern equal to `pre_tokenizer` (that field of a tokenizer.json); Unsupported if none."""
    if pre_tokenizer is None:
        raise Unsupported("no pre-tokenizer")
    steps = (
        pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    )
    *splits, last = steps
    if last["type"] != "ByteLevel" or last.get("add_prefix_space"):
        raise Unsupported("pre-tokenizer does not end in plain ByteLevel")
    if any(step["type"] != "Split" for step in splits):
        raise Unsupported("pre-tokenizer other than Split")
    patterns = [step["pattern"].get("Regex") for step in splits]
    if last.get("use_regex", True):
        patterns.append(_GPT2)
        splits = [*splits, {"behavior": "Isolated", "invert": False}]
    if None in patterns:
        raise Unsupported("split at a fixed string")
    manners = {(step["behavior"], step["invert"]) for step in splits}
    if manners == {("Removed", True)} and len(patterns) == 1:
        return str(patterns[0])  # gaps are dropped there too
    if manners != {("Isolated", False)}:
        raise Unsupported("split behaviour")
    if len(patterns) == 1:
        return _with_gaps(str(patterns[0]))
    if tuple(patterns) == _DEEPSEEK:
        return _fused_deepseek()
    raise Unsupported("several splits in sequence")


def _with_gaps(pattern: str) -> str:
    return rf"{pattern}|(?:(?!{pattern})[\s\S])+"


def _fused_deepseek() -> str:
    """The three splits of `_DEEPSEEK` as one pattern.

    A character is a number (N), of the CJK ranges (J) or other (O), and every piece of the first
    two splits lies inside one such class. The third split then runs inside each piece: the O
    alternatives are DeepSeek's own without N and J, and their lookahead takes a following N or J
    for the end of the text, which it is in that piece. J holds letters, two combining marks,
    punctuation, symbols and unassigned characters, so the third split cuts J pieces as well.
    """
    ranges = "一-龥\u3040-ゟ゠-ヿ"
    n, j = r"\p{N}", f"[{ranges}]"
    j_word = rf"[{j}&&[^\p{{L}}\p{{P}}\p{{S}}]]?[{j}&&[\p{{L}}\p{{M}}]]+"
    j_marks = rf"[{j}&&[\p{{P}}\p{{S}}]]+"
    j_gap = f"(?:(?!{j_word}|{j_marks}){j})+"
    word = rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}{n}{ranges}]?[[\p{{L}}\p{{M}}]--{j}]+"
    marks = rf" ?[[\p{{P}}\p{{S}}]--{j}]+[\r\n]*"
    lines, trailing, spaces = r"\s*[\r\n]+", rf"\s+(?![^\s{n}{ranges}])", r"\s+"
    gap = rf"(?:(?!{n}|{j}|{_TAGGED}|{word}|{marks}|\s)[\s\S])+"
    return "|".join(
        (n + "{1,3}", j_word, j_marks, j_gap, _TAGGED, word, marks, lines, trailing, spaces, gap)
    )
