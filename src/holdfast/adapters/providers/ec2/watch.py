"""Runs on the machine, beside the agent: does EC2 say that the machine will be taken away?

    python watch.py AGENT_ROOT [METADATA_URL [SECONDS]]

Asked every few seconds, as AWS advises: the notice comes two minutes before. What it says is written into the
agent's file `notice` as seconds since 1970 by this machine's own clock; how long is left is reckoned by EC2's
clock, from the date of its own answer. A rebalance recommendation is not passed on: it says that the risk has
grown and names no time, and machines that get one often live on for hours.
"""

import calendar
import email.utils
import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = "http://169.254.169.254"
EVERY_S = 5.0
ANSWER_S = 2.0
TOKEN_S = 21600


def ask(url: str, token: str = "") -> tuple[str, float] | None:
    """The answer and EC2's time; None: there is nothing there."""
    asked = urllib.request.Request(url)
    if token:
        asked.add_header("X-aws-ec2-metadata-token", token)
    else:
        asked.method = "PUT"
        asked.add_header("X-aws-ec2-metadata-token-ttl-seconds", str(TOKEN_S))
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with straight.open(asked, timeout=ANSWER_S) as answer:
            date = email.utils.parsedate_tz(answer.headers.get("Date", ""))
            there = email.utils.mktime_tz(date) if date else time.time()
            return answer.read(65536).decode(), there
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def goes_at(said: str, there: float) -> float:
    """From `{"action": "terminate", "time": "2026-01-31T08:22:00Z"}`, by our own clock."""
    told: str = json.loads(said)["time"]
    return time.time() + calendar.timegm(time.strptime(told, "%Y-%m-%dT%H:%M:%SZ")) - there


def note(root: str, when: float) -> None:
    fresh = os.path.join(root, ".notice.new")
    with open(fresh, "w") as file:
        file.write(f"{when:.3f}\n")
    os.replace(fresh, os.path.join(root, "notice"))


def main(root: str, url: str = URL, every: float = EVERY_S) -> None:
    token, until, told = "", 0.0, ""
    while True:
        try:
            if time.monotonic() > until and (granted := ask(url + "/latest/api/token")):
                token, until = granted[0], time.monotonic() + TOKEN_S / 2
            said = ask(url + "/latest/meta-data/spot/instance-action", token)
            if said is not None and said[0] != told:
                note(root, goes_at(*said))
                told = said[0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            until = 0.0  # the token may be what is wrong
            print("cannot ask the metadata service:", error, flush=True)
        time.sleep(every)


if __name__ == "__main__":
    told = [*sys.argv[1:], *("", URL, str(EVERY_S))[len(sys.argv) - 1 :]]
    main(told[0], told[1], float(told[2]))
