"""The pack `ml` without a run: scores, checks of probes, requests that fail (K65-K68)."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from pack_scenes import opened_packs, started_packs
from samples import each_case
from web_server import WebServer, answer
from work import work_of

from aish.core.json import JsonObject
from aish.core.tools import SAMPLE, SamplingError
from aish.packs.framework.pack import FileModel
from aish.packs.ml.ml_options import InfluxOptions, MlOptions
from aish.packs.ml.probes import CATEGORIES, questions_of
from aish.packs.ml.scoring import heuristic_scores

LONG = "This is a sentence of several words that says one thing. " * 12

CASES: list[tuple[str, str, str, float]] = [
    ("empty", "x", " \n", 0.0),
    ("empty", "x", "Paris", 1.0),
    ("cut_off", "x", "```python\nx = 1", 0.0),
    ("cut_off", "x", "```python\nx = 1\n```", 1.0),
    ("cut_off", "x", '{"a": [1, 2', 0.0),
    ("cut_off", "x", "It is red, blue and", 0.0),
    ("cut_off", "x", "It is red,", 0.0),
    ("cut_off", "x", f"{' '.join(f'word{n}' for n in range(60))}. And then it", 0.5),
    ("cut_off", "x", f"{LONG}\n- one\n- two", 1.0),
    ("cut_off", "x", "Paris", 1.0),
    ("repeated", "x", "the same words again " * 40, 0.04),
    ("repeated", "x", " ".join(f"word{n}" for n in range(60)), 1.0),
    ("refused", "x", "I'm sorry, but I can't help with that.", 0.0),
    ("refused", "x", "As an AI language model, I have no opinion.", 0.0),
    ("refused", "x", "You can't divide by zero.", 1.0),
    ("wrong_format", "Return only JSON with the name.", "name: Ada", 0.0),
    ("wrong_format", "Answer as JSON.", '```json\n{"name": "Ada"}\n```', 1.0),
    ("wrong_format", "Give a numbered list of colours.", "red, blue", 0.0),
    ("wrong_format", "Give a numbered list of colours.", "1. red\n2. blue", 1.0),
    ("wrong_format", "Use bullet points.", "- red", 1.0),
    ("wrong_format", "Draw a table.", "| a | b |\n|---|---|", 1.0),
    ("wrong_format", "Is it wet? Answer yes or no.", "Perhaps.", 0.0),
    ("wrong_format", "Is it wet? Answer yes or no.", "Yes, it is.", 1.0),
    ("wrong_format", "Is it wet?", "Perhaps.", 1.0),
    ("length", "Say it in at most 4 words.", "one two three four five six seven eight", 0.5),
    ("length", "Say it in one sentence.", "It is. It was.", 0.5),
    ("length", "Say it in at least 4 words.", "one two", 0.5),
    ("length", "Say it in exactly two words.", "one two", 1.0),
    ("length", "Say it.", "one", 1.0),
    ("length", "Say it.", "word " * 8_000, 0.5),
]


@each_case("check, prompt, response, score", CASES)
def test_each_check_scores_from_0_to_1_with_a_reason(
    check: str, prompt: str, response: str, score: float
) -> None:
    found = heuristic_scores(prompt, response)[check]
    assert found.score == pytest.approx(score, abs=0.03), found
    assert found.reason


def test_an_empty_answer_is_worth_nothing_and_a_huge_one_is_refused() -> None:
    with opened_packs(["ml"], None) as scene:
        empty = scene.data("ml_score", prompt="x", response="  ")
        too_long = scene.error("ml_score", prompt="x", response="y" * 400_001)
        scored = scene.text("ml_score", prompt="Say it", response="Paris.")
    assert empty["heuristic"]["score"] == 0
    assert too_long["code"] == "bad_arguments"
    assert scored.startswith("heuristic: 1.00\n  empty: 1.00, 1 word\n")


@each_case("piece", ["[", "| ", " \t", "in one ", "{", "word ", "`", "a. "])
def test_a_long_answer_takes_work_by_its_length(piece: str) -> None:
    text = piece * 4_000
    short = work_of(partial(heuristic_scores, text, text))
    long = work_of(partial(heuristic_scores, text * 4, text * 4))
    assert long.steps < 5 * short.steps + 1_000
    assert long.text < 5 * short.text + 1_000_000


RIGHT = {
    "arithmetic-1": ("43", "17 + 26 = 43"),
    "arithmetic-2": ("125", "It is 125."),
    "word_problems-1": ("19", "24 - 5 = 19"),
    "word_problems-2": ("105", "105 minutes"),
    "counting-1": ("4", "**4**"),
    "counting-2": ("3", "3."),
    "comparison-1": ("9.9", "9.9 is larger than 9.11, so: 9.9"),
    "comparison-2": ("2 kg", "2 kg."),
    "sorting-1": ("3, 5, 8, 11", "3,5,8,11"),
    "sorting-2": ("apple, pear, plum", "Apple, Pear, Plum."),
    "spelling-1": ("level pots", "level, pots"),
    "spelling-2": ("receive", "Receive."),
    "extraction-1": ("Oslo", "It was shipped to Oslo."),
    "extraction-2": ("bob@example.org", " bob@example.org\n"),
    "json-1": ('{"name": "Ada"}', '```json\n{"name": "Ada"}\n```'),
    "json-2": ("[1, 2, 3, 4]", "[1,2,3,4]"),
    "instructions-1": ("READY", "READY\n"),
    "instructions-2": ("blue blue blue", "Blue blue blue"),
    "logic-1": ("Yes", "Yes, Rex is a hen."),
    "logic-2": ("Eve", "Eve."),
    "dates-1": ("Sunday", "Two days after Friday is Sunday."),
    "dates-2": ("29", "29 days"),
    "units-1": ("2500", "2,500 m"),
    "units-2": ("180", "3 * 60 = 180"),
    "code-1": ("6", "`6`"),
    "code-2": ("b", "`b`"),
    "sentiment-1": ("positive", "It is positive."),
    "sentiment-2": ("negative", "Negative"),
    "translation-1": ("water", "Water."),
    "translation-2": ("red", "Red"),
    "knowledge-1": ("Paris", "The capital is Paris."),
    "knowledge-2": ("8", "There are 8."),
}
WRONG = (
    "",
    "I do not know",
    "7",
    "yes and no",
    "READY!",
    '{"name": "Eva"}',
    "positive or negative",
    "[1]",
)


def test_each_question_accepts_right_answers_and_no_others() -> None:
    questions = questions_of(None)
    assert len(CATEGORIES) == 16
    assert [one.id for one in questions] == list(RIGHT)
    for question in questions:
        assert all(question.accepts(text) for text in RIGHT[question.id]), question
        assert not [text for text in WRONG if question.accepts(text)], question
    assert {one.category for one in questions_of(["units"])} == {"units"}


def params_of(name: str, arguments: JsonObject, *answers: JsonObject | Exception) -> Any:
    """The result of a call whose requests have these answers, and the requests."""
    asked: list[JsonObject] = []

    async def sample(params: JsonObject) -> JsonObject:
        asked.append(params)
        await anyio.lowlevel.checkpoint()
        found = answers[min(len(asked), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    async def scene() -> Any:
        SAMPLE.set(sample)
        options = {"ml": MlOptions(judge="m")}
        models = {"m": FileModel("embedded")}
        async with started_packs(["ml"], None, options, models=models) as packs:
            return await packs.call(name, arguments)

    return anyio.run(scene), asked


def said(text: str) -> JsonObject:
    return {"content": {"type": "text", "text": text}, "model": "m", "stopReason": "endTurn"}


def test_a_request_has_only_what_was_given() -> None:
    result, (asked,) = params_of("ml_generate", {"prompt": "x"}, said("y"))
    assert result["structuredContent"] == {"response": "y", "model": "m", "usage": {}}
    assert asked == {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}


@pytest.mark.parametrize("code", ["unavailable", "limit", "timeout"])
@pytest.mark.parametrize(
    ("tool", "arguments", "requests"),
    [
        ("ml_generate", {"prompt": "x", "model": "m"}, 1),
        ("ml_score", {"prompt": "x", "response": "y", "suite": "semantic"}, 1),
        ("ml_probe", {}, 3),
    ],
    ids=["generate", "score", "probe"],
)
def test_why_a_model_does_not_answer_is_the_code(
    tool: str, arguments: JsonObject, requests: int, code: Any
) -> None:
    result, asked = params_of(tool, arguments, SamplingError("it is away", code))
    assert result["structuredContent"]["error"]["code"] == code
    assert len(asked) == (1 if code == "limit" else requests)


def test_a_probe_that_reaches_the_limit_asks_no_more() -> None:
    limit = SamplingError("32 times", "limit")
    result, asked = params_of("ml_probe", {"categories": ["json", "units"]}, said("180"), limit)
    rows = result["structuredContent"]["results"]
    assert len(asked) == 2
    assert [row["response"][:7] for row in rows] == ["180", "ERROR: ", "ERROR: ", "ERROR: "]


ODD: Sequence[bytes] = (
    b"no json",
    b"[]",
    b'{"results": 3}',
    b'{"results": [{"error": "no database"}]}',
    b'{"results": [{"series": [{"name": "a", "columns": 3}]}]}',
    b"[" * 100_000,
    b'{"results": [{"series": [{"name": "a", "columns": ["time"], "values": [[NaN]]}]}]}',
    b'{"results": [{"series": [{"name": "a", "columns": ["time"], "values": [[1%s]]}]}]}'
    % (b"0" * 400),
)


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_an_odd_answer_of_influx_is_told_and_the_rest_stays(body: bytes, tmp_path: Any) -> None:
    with WebServer({"/query": answer(body, "application/json")}) as server:
        options = {"ml": MlOptions(influx=InfluxOptions(server.url, "db"))}
        with opened_packs(["ml"], None, options, runs=tmp_path / "runs") as scene:
            found = scene.data("ml_status")
    assert found["runs"] == 0
    assert found["degraded"] == "InfluxDB answers with what is no result"
    assert "points" not in found


def test_backends_are_looked_at_and_an_address_that_nobody_has_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that is busy may stand still for longer than a model is waited for.
    monkeypatch.setattr("aish.packs.ml.ml_pack._REACH_SECONDS", 60.0)
    with WebServer({}) as server:
        models = {
            "here": FileModel(server.url),
            "gone": FileModel("http://127.0.0.1:1"),
            "keyless": FileModel(server.url, "the environment variable `KEY` is not set"),
            "inside": FileModel("embedded"),
        }
        with opened_packs(["ml"], None, models=models, default_model="here") as scene:
            result = scene.call("ml_backends")
    data = result["structuredContent"]
    assert [row["available"] for row in data["backends"]] == [True, False, False, True]
    assert data["default"] == "here"
    assert "`KEY` is not set" in result["content"][0]["text"]
    assert json.dumps(data)
