"""A service on PORT. It says over HTTP what the file `status` in its folder says (200 if there is none), and
does not answer while there is a file `hang`.

It begins to listen when a file `open` appears, or at once if it is told `open`.
"""

import os
import socket
import sys
import time

while "open" not in sys.argv and not os.path.exists("open"):
    time.sleep(0.005)
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("listening", flush=True)
held = []
while True:
    connection, _ = server.accept()
    if os.path.exists("hang"):
        held.append(connection)
        continue
    with connection:
        asked = connection.recv(4096)
        status = "200"
        if os.path.exists("status"):
            with open("status") as file:
                status = file.read().strip()
        if asked:
            connection.sendall(f"HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n".encode())
