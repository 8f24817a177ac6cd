"""What a request for a model asks for, and what is added to it on its way."""

from typing import Any

import msgspec
import pytest

from holdfast.gateway.ask import NotReadable, continued, left, prompt_size, read, with_usage
from holdfast.gateway.shapes import listed


def body(**more: Any) -> bytes:
    return msgspec.json.encode({"model": "toy", "messages": [{"role": "user", "content": "hi"}], **more})


@pytest.mark.parametrize(
    ("more", "most", "outputs"),
    [
        ({}, None, 1),
        ({"max_tokens": 5}, 5, 1),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9, 1),
        ({"max_output_tokens": 7, "max_tokens": None}, 7, 1),
        ({"max_tokens": 0}, None, 1),
        ({"max_completion_tokens": 0}, None, 1),
        ({"max_completion_tokens": 0, "max_tokens": 5}, 5, 1),
        ({"max_output_tokens": 0, "max_tokens": 0}, None, 1),
        ({"n": 4, "use_beam_search": True}, None, 4),
        ({"text": "a", "sampling_params": {"max_new_tokens": 900, "n": 3}}, 900, 3),
        ({"text": ["a", "b"], "sampling_params": {"max_new_tokens": 0}}, None, 2),
        ({"input_ids": [[1, 2], [3]], "max_tokens": 5, "sampling_params": {"max_new_tokens": 7}}, 7, 2),
        ({"inputs": "a", "parameters": {"max_new_tokens": 50, "best_of": 2}}, 50, 2),
        ({"text": {"format": {"type": "text"}}, "prompt": {"id": "stored"}}, None, 1),
        ({"n": 3, "best_of": 5}, None, 5),
        ({"n": None}, None, 1),
        ({"n": 0}, None, 1),
    ],
)
def test_the_most_that_may_come_is_what_is_counted(
    more: dict[str, Any], most: int | None, outputs: int
) -> None:
    """Engines take 0 for no limit, and so do we: it was taken for no tokens at all."""
    ask = read(body(**more))
    assert (ask.most, ask.outputs) == (most, outputs)


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": None}, 1),
        ({"prompt": []}, 1),
        ({"prompt": ["a"]}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": ["a,b", '"],["', "[1"]}, 3),
        ({"prompt": [5, 6, 7]}, 1),
        ({"prompt": [7] * 5_000}, 1),
        ({"prompt": [[5, 6], [7], [8]]}, 3),
        ({"prompt": [[5, 6], [7]], "n": 3}, 6),
        ({"prompt": ["a", "b"], "best_of": 4, "n": 2}, 8),
        ({"prompt": ["a", "b"], "n": 64, "use_beam_search": True}, 128),
        ({"prompt_embeds": ["AAAA", "BBBB"], "prompt": "a"}, 3),
        ({"prompt": {"id": "stored"}}, 1),
    ],
)
def test_every_prompt_of_a_list_is_counted(more: dict[str, Any], outputs: int) -> None:
    """Two thousand in one request were admitted as one."""
    assert read(body(**more)).outputs == outputs
    spaced = msgspec.json.format(body(**more))
    assert read(spaced.replace(b'"prompt"', b'"pr\\u006fmpt"')).outputs == outputs


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": ["a"] * 129},
        {"prompt": ["a"] * 2_000, "max_tokens": 4_000},
        {"prompt": [[1]] * 500_000},
        {"prompt": ["a"] * 65, "n": 2},
        {"prompt": [1, "a"]},
        {"prompt": [1] * 200 + ["a"] * 2_000},
        {"prompt": ["a"] * 64, "prompt_embeds": ["AAAA"] * 65},
    ],
)
def test_more_prompts_than_outputs_may_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(NotReadable) as error:
        read(body(**more))
    assert error.value.param == "prompt"


@pytest.mark.parametrize(
    ("said", "least"),
    [
        ("a text, with a comma", 0),
        ([], 0),
        ([{"role": "user", "content": "hi"}], 0),
        ([1, 2, 3], 3),
        ([[1, 2], [3]], 3),
        (["a", "b"], 4),
        (["a"] * 5_000, 10_000),
    ],
)
def test_a_list_of_prompts_has_a_token_for_each_number_and_two_for_each_text(said: Any, least: int) -> None:
    assert listed(read(body(input=said)).input) == least


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", ""),
        (b"{", ""),
        (b"null", ""),
        (b"[]", ""),
        (b"{}", "model"),
        (b'{"model":5}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"x","n":129}', "n"),
        (b'{"model":"x","best_of":1000000}', "n"),
        (b'{"model":"x","max_tokens":-1}', "max_tokens"),
        (b'{"model":"x","max_tokens":5,"max_completion_tokens":-1}', "max_tokens"),
        (b'{"model":"x","max_tokens":1.5}', "max_tokens"),
        (b'{"model":"x","stream":"yes"}', "stream"),
        (b'{"model":"x","stream_options":{"include_usage":"yes"}}', "stream_options.include_usage"),
        (b'{"model":"x"} {"model":"y"}', ""),
        (b'{"model":"\xff"}', ""),
        (b'{"model":"x","a":' + b"[" * 100_000, ""),
    ],
)
def test_what_cannot_be_read_says_where(data: bytes, param: str) -> None:
    with pytest.raises(NotReadable) as error:
        read(data)
    assert error.value.param == param
    assert str(error.value)


def test_a_field_twice_is_counted_as_a_replica_reads_it() -> None:
    """The last one holds, for us as for an engine."""
    assert read(b'{"model":"a","max_tokens":9,"model":"b","max_tokens":1}').most == 1
    assert read(b'{"model":"a","model":"b"}').model == "b"


@pytest.mark.parametrize("all_the_time", [True, False])
@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (body(stream=True), False),
        (body(stream=True) + b" \r\n\t ", False),
        (body(stream=True, stream_options=None), False),
        (body(stream=True, stream_options={}), False),
        (body(stream=True, stream_options={"include_usage": False}), False),
        (body(stream=True, stream_options={"include_usage": True, "other": 1}), True),
        (body(stream=True, messages=[{"content": '"stream_options":{"include_usage":false}'}]), False),
        (
            b'{"model":"toy","stream":true,"stream_options":{"include_usage":false},"stream_options":null}',
            False,
        ),
        (b'{"model":"toy","stream":true,"stream\\u005foptions":{"include_usage":false}}', False),
    ],
)
def test_a_stream_is_made_to_tell_its_usage_and_nothing_else_is_changed(
    data: bytes, wanted: bool, all_the_time: bool
) -> None:
    sent, asked = with_usage(data, read(data), all_the_time=all_the_time)
    assert asked is wanted
    before, after = msgspec.json.decode(data), msgspec.json.decode(sent)
    options = after.pop("stream_options")
    assert options["include_usage"] is True
    assert options.get("continuous_usage_stats", False) is all_the_time
    assert options.get("other") == (before.get("stream_options") or {}).get("other")
    before.pop("stream_options", None)
    assert after == before
    assert sent.count(b'"stream_options":{') == 1 or b"messages" in data


def test_pictures_and_sounds_are_counted_by_the_piece() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "B" * 5_000, "format": "wav"}}
    plain = {"type": "image_url", "image_url": "http://x/y.png"}
    data = body(
        messages=[{"role": "user", "content": [image, sound, plain, {"type": "text", "text": "what?"}]}]
    )
    size, pieces = prompt_size(data)
    assert pieces == 3
    assert 0 < size < 600
    assert prompt_size(body()) == (len(body()), 0)
    odd = body(messages=[{"content": [{"image_url": 5}, {"image_url": {"url": 7}}]}])
    assert prompt_size(odd) == (len(odd), 2)
    assert prompt_size(body(user='about "image_url"'))[0] > 0


def test_a_cut_chat_can_be_asked_to_go_on() -> None:
    found = msgspec.json.decode(continued(body(temperature=0), "so far", 2) or b"")
    assert found["messages"][-1] == {"role": "assistant", "content": "so far"}
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)
    assert found["temperature"] == 0
    assert continued(body(n=2), "so far", 2) is None
    assert continued(body(tools=[]), "so far", 2) is None
    assert continued(b'{"model":"toy","prompt":"x"}', "so far", 2) is None


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"guided_json": {}},
        {"guided_regex": "a+"},
        {"guided_choice": ["a", "b"]},
        {"guided_grammar": "x"},
        {"structured_outputs": {"regex": "a+"}},
        {"regex": "a+"},
        {"ebnf": "x"},
        {"functions": []},
        {"echo": True},
    ],
)
def test_an_answer_of_a_given_form_is_not_continued(more: dict[str, Any]) -> None:
    """The form would begin anew in its middle; and what is echoed would be said twice."""
    assert continued(body(**more), "so far", 2) is None


@pytest.mark.parametrize(
    "more", [{"response_format": {"type": "text"}}, {"guided_json": None}, {"echo": False}]
)
def test_an_answer_whose_form_is_free_is_continued(more: dict[str, Any]) -> None:
    assert continued(body(**more), "so far", 2) is not None


HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("begun", "goes_on"),
    [
        ("Sure, ", "Sure, so far"),
        (None, "so far"),
        ([7, {"type": "text", "text": "b "}], [7, {"type": "text", "text": "b so far"}]),
    ],
)
def test_what_the_client_began_itself_goes_on_in_the_same_message(begun: object, goes_on: object) -> None:
    """An engine goes on with the last message alone: what the client began was one of its own before it."""
    last = {"role": "assistant", "content": begun, "name": "x"}
    data = body(messages=[HI, last], continue_final_message=True, add_generation_prompt=False)
    found = msgspec.json.decode(continued(data, "so far", 2) or b"")
    assert found["messages"] == [HI, {**last, "content": goes_on}]
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    "last",
    [HI, {"role": "assistant", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": 1}, 7],
)
def test_a_message_that_cannot_be_gone_on_with_is_not(last: object) -> None:
    assert continued(body(messages=[HI, last], continue_final_message=True), "so far", 2) is None
    assert continued(body(messages=[], continue_final_message=True), "so far", 2) is None


def test_an_answer_is_another_message_than_the_last_one_of_the_client() -> None:
    last = {"role": "assistant", "content": "Sure."}
    found = msgspec.json.decode(continued(body(messages=[HI, last]), "so far", 2) or b"")
    assert found["messages"] == [HI, last, {"role": "assistant", "content": "so far"}]


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ({}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": 5}, 2),
        ({"max_tokens": 2}, -1),
        ({"max_tokens": 9, "max_completion_tokens": 3}, 0),  # engines heed the newer name
    ],
)
def test_what_is_left_of_a_length_is_known(more: dict[str, Any], may: int | None) -> None:
    assert left(body(**more), 3) == may


@pytest.mark.parametrize(("most", "left"), [(40, 28), (12, 1), (0, 0), (None, None)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_that_goes_on_may_say_what_is_left_of_its_length(
    name: str, most: int | None, left: int | None
) -> None:
    """An engine counts what is new: the client got up to twice what it had asked for."""
    asked: dict[str, object] = {"model": "m", "messages": [], name: most}
    found = msgspec.json.decode(continued(msgspec.json.encode(asked), "so far", 12) or b"")
    assert found[name] == left


@pytest.mark.parametrize(
    "odd", [b'"\xff"', b"1e400", b"9" * 5_000, b"-0"], ids=["text", "far", "long", "zero"]
)
def test_what_nobody_here_reads_goes_on_as_it_came(odd: bytes) -> None:
    """It was read to change something beside it: an exception, or another number."""
    data = b'{"model":"m","x":%b,"stream":true,"stream_options":{"include_usage":false,"y":%b}}' % (odd, odd)
    told, wanted = with_usage(data, read(data))
    assert not wanted
    assert told == (
        b'{"model":"m","x":%b,"stream":true,"stream_options":{"include_usage":true,"y":%b}}' % (odd, odd)
    )
    picture = b'{"model":"m","messages":[{"image_url":"data:abc"}],"x":%b}' % odd
    assert prompt_size(picture)[0] <= len(picture)
    going_on = continued(picture, "so far", 2)
    assert going_on is not None
    assert b'"x":%b' % odd in going_on


def test_a_name_that_is_no_text_is_asked_for_its_usage_all_the_same() -> None:
    data = b'{"model":"m","\xff":1,"stream":true,"stream_options":{"include_usage":false}}'
    told, _ = with_usage(data, read(data))
    assert told == data[:-1] + b',"stream_options":{"include_usage":true}}'
    assert continued(data, "so far", 2) is None
