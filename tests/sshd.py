"""A private ssh server on a loopback port: its own keys, its own configuration, nobody else's service.

The program comes from the package openssh-server, which is installed where it is missing.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import asyncssh

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.ssh.hosts import SshHost
from tests.packages import need, which

TIMEOUT_S = 30.0

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
UseDNS no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
PrintMotd no
# A shell that takes itself for the first of a session reads its user's start-up file, which may be slow.
SetEnv SHLVL=2
LogLevel ERROR
"""


class Sshd:
    def __init__(self, folder: Path) -> None:
        self.folder, self.program = folder, need(lambda: which("sshd"), "openssh-server")
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.key_file = self.new_key(folder, "client_key")
        (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text())
        self.new_key(folder, "host_key")
        public = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        (folder / "sshd_config").write_text(CONFIG.format(port=self.port, folder=folder))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def host(self, name: str, root: Path, **more: str) -> SshHost:
        facts = {"key_file": self.key_file, "known_hosts": str(self.folder / "known_hosts"), **more}
        return SshHost(name, "127.0.0.1", self.port, root=str(root), **facts)

    def start(self) -> None:
        if self._process is not None:
            return
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it insists
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self.program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await_port()

    def stop(self) -> None:
        """With every connection, as if the machine were cut off; what was started through it goes on."""
        if self._process is None:
            return
        sessions = _sessions(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        for session in sessions:
            tree.send(session, signal.SIGKILL)
        assert tree.wait(sessions, TIMEOUT_S) == []

    @staticmethod
    def new_key(folder: Path, name: str) -> str:
        key = asyncssh.generate_private_key("ssh-ed25519")
        path = folder / name
        key.write_private_key(str(path))
        path.chmod(0o600)
        key.write_public_key(f"{path}.pub")
        return str(path)

    def _await_port(self) -> None:
        assert self._process is not None
        end = time.monotonic() + TIMEOUT_S
        while True:
            said = (self.folder / "log").read_text(errors="replace")
            assert self._process.poll() is None, f"sshd ended: {said}"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < end, f"sshd does not listen: {said}"
                time.sleep(0.01)


def _sessions(server: int) -> list[tree.Process]:
    """The processes of the server that hold connections: its descendants that are still of its program."""
    everyone = [tree.look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    living = sorted((process for process in everyone if process), key=lambda process: process.start)
    kin, found = {server}, []
    for process in living:
        if process.parent in kin and b"sshd" in _name(process.pid):
            kin.add(process.pid)
            found.append(process)
    return found


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
