"""Where a fuzzer begins: inputs that are almost right, and the words of each language."""

from tests.fuzz.targets import TRAILER

GET = b"GET /v1/models?a=b HTTP/1.1\r\nhost: h\r\n\r\n"
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h:1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer x\r\nContent-Length: 13\r\n\r\n" + b'{"model":"m"}'
)
CHUNKS = (
    b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nx-t: 1\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}\n\n'
SAYS = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage": {"total_tokens":4}}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT = b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":5}'

SEEDS: dict[str, tuple[bytes, ...]] = {
    "down": (
        GET,
        GET + GET,
        POST,
        POST + GET,
        CHUNKS,
        CHUNKS + POST,
        b"\r\n\r\n" + GET,
        b"PUT /x HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nz" + GET,
        b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    ),
    "up": (
        OK + b"content-length: 3\r\ncontent-type: text/event-stream\r\n\r\nabc",
        OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"connection: close\r\n\r\nabcdef",
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 429 Later\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 204 None\r\n\r\n",
    ),
    "stream": (
        ROLE + SAYS + END + USAGE + DONE,
        (SAYS + USAGE + DONE).replace(b"\n", b"\r\n"),
        b": hello\n\n" + USAGE + DONE,
        b'data: {"error":{"message":"out of memory"}}\n\n',
        b"event: x\nid: 1\ndata: a\ndata: b\n\n" + DONE,
    ),
    "body": (
        CHAT,
        CHAT[:-1] + b',"stream_options":{"include_usage":false}}',
        CHAT[:-1] + b',"stream_options":null,"n":2,"tools":[{"type":"function"}]}',
        b'{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}',
        b'{"model":"m","input":["a",1,1.5,-0.0,1e9,true,null,"\\u00e9\\ud83d\\ude00"]}',
    ),
}
HTTP = (
    b"\r\n", b"\r\n\r\n", b"\n", b" ", b"\t", b"0\r\n\r\n", b"chunked", b"HTTP/1.1", b"HTTP/1.0",
    b"content-length: ", b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"host: h\r\n",
    b"connection: keep-alive\r\n", b"expect: 100-continue\r\n", b"upgrade: h2c\r\n", b"x: y\r\n",
)  # fmt: skip
WORDS: dict[str, tuple[bytes, ...]] = {
    "down": (*HTTP, b"GET / ", b"POST / ", b"HEAD / ", b"content-encoding: gzip\r\n", GET),
    "up": (*HTTP, OK, b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 100 Go\r\n\r\n", b"HTTP/1.1 304 No\r\n"),
    "stream": (b"\n\n", b"\r\n\r\n", b"\r\n", b"data: ", b"data:", b": x\n\n", USAGE, END, DONE, b'"usage":{',
               b'"error":', b'"choices":[]', b'"finish_reason":"length"', b'"finish_reason":"tool_calls"',
               b'"content":"', b'\\"'),
    "body": (b'"model":', b'"stream_options":', b'"include_usage":', b"null", b"true", b"false", b'"n":',
             b"{}", b"[]", b'"max_tokens":', b'"image_url"', b"1e400", b"18446744073709551616", b'"\\ud800"',
             b"\xff",
             b'"messages":', b'"tools":', b"-0.0", b'"stream\\u005foptions":'),
}  # fmt: skip


def inputs(name: str) -> list[bytes]:
    """Each of them whole, and in some other way."""
    plain, other = bytes(TRAILER), bytes([3, 0, 9, 0, 40, 0, 90, 0, 0])
    return [seed + trailer for seed in SEEDS[name] for trailer in (plain, other, b"\x81" + plain[1:])]
