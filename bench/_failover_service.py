"""The smallest service: it answers every HTTP request on PORT with who it is and its role at that moment.

_failover_service.py
"""

import os
import socket

SAYS = os.environ["HOLDFAST_STATE_FILE"]
WHO = os.environ["HOLDFAST_REPLICA"]


def role() -> str:
    """Not parsed: this program shall start in a moment, and `json` is most of that moment."""
    with open(SAYS) as file:
        return "active" if '"role":"active"' in file.read().replace(" ", "") else "standby"


def main() -> None:
    server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
    while True:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5)
            try:
                if connection.recv(4096):
                    body = f"{WHO} {role()}"
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    connection.sendall((head + body).encode())
            except OSError:
                continue


if __name__ == "__main__":
    main()
