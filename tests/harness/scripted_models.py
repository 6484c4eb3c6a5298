"""Models of the frameworks that play a script: they make the calls of each turn, and then they are done.

A turn is a list of calls. A call has the id ``c0.0``, by the numbers of its turn and of its place there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_cache import Read, Toolbox, Write

Call = tuple[str, Any]
Turn = Sequence[Call]


def langchain_message(turn: Turn, number: int = 0) -> Any:
    """What a model of LangChain says in a turn."""
    from langchain_core.messages import AIMessage

    made = [{"name": name, "args": args, "id": f"c{number}.{place}"} for place, (name, args) in enumerate(turn)]
    return AIMessage("", tool_calls=made)


def langchain_model(*turns: Turn | Any) -> Any:
    """A model of LangChain. A turn may be a message, too."""
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Model(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    said = [langchain_message(one, at) if isinstance(one, list | tuple) else one for at, one in enumerate(turns)]
    return Model(responses=[*said, AIMessage("done")])


def openai_steps(*turns: Turn, prefix: str = "c") -> list[Any]:
    """What a `ScriptedModel` of the OpenAI Agents SDK does in these turns."""
    from agents.testing import function_call

    return [
        [function_call(name, args, call_id=f"{prefix}{number}.{place}") for place, (name, args) in enumerate(turn)]
        for number, turn in enumerate(turns)
    ]


def openai_model(*turns: Turn) -> Any:
    """A model of the OpenAI Agents SDK."""
    from agents.testing import ScriptedModel, assistant_message

    return ScriptedModel([*openai_steps(*turns), [assistant_message("done")]])


def pydantic_model(*turns: Turn) -> Any:
    """A model of Pydantic AI."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    def parts_of(messages: list[Any]) -> list[Any]:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        calls = turns[number] if number < len(turns) else ()
        return [ToolCallPart(name, args, tool_call_id=f"c{number}.{place}") for place, (name, args) in enumerate(calls)]

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        return ModelResponse(parts=parts_of(messages) or [TextPart("done")])

    async def stream(messages: list[Any], _: Any) -> Any:
        for at, part in enumerate(parts_of(messages)):
            yield {at: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
        if not parts_of(messages):
            yield "done"

    return FunctionModel(answer, stream_function=stream)


def read(order_id: str = "7") -> Call:
    return "get_order", {"order_id": order_id}


def write(order_id: str = "7") -> Call:
    return "cancel_order", {"order_id": order_id}


def toolbox(**rules: Any) -> Toolbox:
    order = "order:{order_id}"
    return Toolbox({"get_*": Read(order), "cancel_order": Write(order), **rules}, namespace="shop")


def adk_model(*turns: Turn) -> Any:
    """A model of Google ADK."""
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

    said = [
        [
            types.Part(function_call=types.FunctionCall(id=f"c{number}.{place}", name=name, args=args))
            for place, (name, args) in enumerate(turn)
        ]
        for number, turn in enumerate(turns)
    ]
    said.append([types.Part(text="done")])

    class Script(BaseLlm):
        model: str = "script"

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=said.pop(0)))

    return Script()
