"""The shapes of request bodies, and how SGLang words it when one does not fit.

SGLang validates bodies with pydantic and prints pydantic's errors; so does this, with models of its
own that name the fields the protocol has, as far as they matter to a gate. What validates here and
is wrong all the same is in `sampling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from gateway.twin.refusals import Broken, Invalid, pydantic_message

Json = dict[str, Any]


class Shape(BaseModel):
    """Fields that are not named here pass through."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(Shape):
    """What else a stream carries."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Function(Shape):
    """A function a model may call."""

    name: str
    description: str | None = None
    parameters: Any = None


class Tool(Shape):
    """A tool of a chat."""

    type: str = "function"
    function: Function


class ToolChoice(Shape):
    """One function, by name."""

    function: Json
    type: Literal["function"] = "function"


class TextPart(Shape):
    """Text in a message."""

    type: Literal["text"]
    text: str


class MediaPart(Shape):
    """A picture, a film or a sound in a message."""

    type: Literal["image_url", "video_url", "audio_url", "input_audio"]


class OtherMessage(Shape):
    """A message of anybody but the user."""

    role: Literal["system", "assistant", "tool", "function", "developer", "latest_reminder"]
    content: str | list[TextPart | MediaPart] | None = None


class UserMessage(Shape):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[TextPart | MediaPart]


class ResponseFormat(Shape):
    """How an answer is to look."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]


class OpenAi(Shape):
    """What chats and completions have in common."""

    model: str = "default"
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    lora_path: list[str | None] | str | None = None
    min_tokens: int = 0
    n: int = 1
    presence_penalty: float = 0.0
    priority: int | None = None
    response_format: ResponseFormat | None = None
    rid: str | list[str] | None = None
    seed: int | None = None
    session_params: Json | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None


class Chat(OpenAi):
    """POST /v1/chat/completions."""

    messages: list[OtherMessage | UserMessage]
    chat_template_kwargs: Json | None = None
    input_ids: list[int] | None = None
    logprobs: bool = False
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    min_p: float | None = None
    reasoning_effort: (
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | float | None
    ) = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    tool_choice: ToolChoice | Literal["auto", "required", "none"] = "auto"
    tools: list[Tool] | None = None
    top_k: int | None = None
    top_logprobs: int | None = None
    top_p: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, body: Any) -> Any:  # noqa: ANN401 - pydantic passes what came
        if not isinstance(body, dict) or isinstance(body.get("response_format"), str):
            raise Broken  # SGLang looks into both before anything has checked them
        if body.get("tool_choice") is None:
            body["tool_choice"] = "none" if body.get("tools") is None else "auto"
        return body


def _positive(value: Any) -> Any:  # noqa: ANN401 - pydantic passes what came
    if isinstance(value, int | float) and value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


class Completion(OpenAi):
    """POST /v1/completions."""

    prompt: list[int] | list[list[int]] | str | list[str]
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None
    max_tokens: Annotated[int, BeforeValidator(_positive)] = 16
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    suffix: str | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


def _ids(value: Any) -> Any:  # noqa: ANN401 - pydantic passes what came
    if value is not None and not isinstance(value, list):
        message = f"must be list or null; got {type(value).__name__}"
        raise ValueError(message)
    for item in value or ():
        if not isinstance(item, int | list):
            message = f"elements must be int or list; got {type(item).__name__}"
            raise ValueError(message)  # noqa: TRY004 - pydantic wants a ValueError
    return value


class Generate(Shape):
    """POST /generate."""

    text: str | list[str] | None = None
    input_ids: Annotated[Any, BeforeValidator(_ids)] = None
    lora_path: list[str | None] | str | None = None
    priority: int | None = None
    return_logprob: list[bool] | bool | None = None
    rid: str | list[str] | None = None
    sampling_params: list[Json] | Json | None = None
    stream: bool = False


class Tokenize(Shape):
    """POST /tokenize from 0.5.12 on."""

    model: str = "default"
    prompt: str | list[str] | None = None
    messages: list[OtherMessage | UserMessage] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _one_of(cls, body: Any) -> Any:  # noqa: ANN401 - pydantic passes what came
        if isinstance(body, dict):
            given = [body.get("prompt"), body.get("messages")]
            if sum(item is not None for item in given) != 1:
                raise ValueError("Exactly one of 'prompt' or 'messages' must be provided.")
        return body


class OldTokenize(Shape):
    """POST /tokenize before."""

    prompt: str | list[str]


class Abort(Shape):
    """POST /abort_request."""

    rid: str | None = None
    abort_all: bool = False


class AnthropicMessage(Shape):
    """A turn of an Anthropic conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Json]


class AnthropicTool(Shape):
    """A tool as Anthropic describes one."""

    name: str
    input_schema: Json | None = None


class Thinking(Shape):
    """Whether to think first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None

    @model_validator(mode="after")
    def _enough(self) -> Thinking:
        least = 1024
        if self.budget_tokens is not None and self.budget_tokens < least:
            message = f"thinking.budget_tokens must be >= {least} (got {self.budget_tokens})"
            raise ValueError(message)
        return self


class CountTokens(Shape):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[Json] | None = None
    tools: list[AnthropicTool] | None = None


class Messages(CountTokens):
    """POST /v1/messages."""

    max_tokens: Annotated[int, BeforeValidator(_positive)]
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    thinking: Thinking | None = None
    tool_choice: Json | None = None
    top_k: int | None = None
    top_p: float | None = None


def fit(shape: type[Shape], body: Json, route: str) -> Json:
    """The fields of `body` as the server takes them: "7" is a number, 1 is true.

    Raises Invalid in pydantic's words, Broken where SGLang's handler fails.
    """
    try:
        # As FastAPI does it; a field that is no object is then told in these words.
        fitting = shape.model_validate(body, from_attributes=True)
    except ValidationError as error:
        raise unfit(error.errors(include_url=False), route) from None
    return body | fitting.model_dump(exclude_unset=True, exclude={"messages", "tools"})


def unfit(errors: list[Any], route: str) -> Invalid:
    """The refusal of a body with pydantic's `errors`. On the Anthropic routes they are told as
    ``field: message``, elsewhere as Python prints them."""
    if route.startswith("/v1/messages"):
        told = [(".".join(map(str, one["loc"])), str(one["msg"])) for one in errors]
        return Invalid(
            "; ".join(f"{where}: {what}" if where else what for where, what in told), pydantic=True
        )
    details = [{**one, "loc": ("body", *one["loc"])} for one in errors]
    return Invalid(pydantic_message(details, route), pydantic=True)
