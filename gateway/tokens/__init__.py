"""Counts the tokens of a prompt as the served model counts them.

A body is read into prompts (`request`; Anthropic bodies become chats first, `anthropic`), counted
in the best way there is (`counter`): by the model's own tokenizer and template in this process, by
the server's /v1/tokenize, or bounded by bytes (`bound`). Media cost what their pixels say
(`images`). Every number is compared with the engine's (`meter`), which keeps it honest.
"""

from gateway.tokens.anthropic import Conversion
from gateway.tokens.build import build_counter
from gateway.tokens.counter import Counter, Known, Unavailable
from gateway.tokens.faults import Unreadable
from gateway.tokens.images import MediaRules
from gateway.tokens.locate import find_tokenizer
from gateway.tokens.model import Accuracy, Busy, Counted, CountRefused, Kind, Method

__all__ = [
    "Accuracy",
    "Busy",
    "Conversion",
    "CountRefused",
    "Counted",
    "Counter",
    "Kind",
    "Known",
    "MediaRules",
    "Method",
    "Unavailable",
    "Unreadable",
    "build_counter",
    "find_tokenizer",
]
