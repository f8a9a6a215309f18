"""A PostgreSQL server on a host of its own, which can be killed and cut off like any other host."""

import os
import pwd

from support.servers.postgresql_server import find_binaries, unprivileged_user

from .network import Host, Network

START_TIMEOUT_S = 30.0
PORT = 5432
SETTINGS = {"shared_buffers": "16MB", "max_connections": "50", "autovacuum": "off"}


class Database:
    """It runs from its making until `crash`, and from `start` on again. It ends with the network."""

    def __init__(self, network: Network) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self._binaries = binaries
        self.host: Host = network.add_host("database")
        user = pwd.getpwnam(unprivileged_user() or "nobody")
        self._as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        os.chown(self.host.directory, user.pw_uid, user.pw_gid)
        network.directory.chmod(0o755)
        self._data = f"{self.host.inside}/data"
        self._run("initdb", "-D", self._data, "-U", "magnetar", "-A", "trust", "-N", "--no-instructions", "-E", "UTF8")
        with (self.host.directory / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\n")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://magnetar@{self.host.address}:{PORT}/postgres"

    def start(self) -> None:
        """Start the server, and its host if that was killed, and wait until it answers."""
        if not self.host.running:
            self.host.start()
        settings = {"listen_addresses": self.host.address, "unix_socket_directories": str(self.host.inside), **SETTINGS}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "-D", self._data, "-w", "-t", f"{START_TIMEOUT_S:.0f}", "-o", options, "-l",
                  f"{self.host.inside}/log", "start")  # fmt: skip

    def crash(self, *, silently: bool = False) -> None:
        """Kill the server with its host. What was committed is there after the next start."""
        self.host.kill(silently=silently)

    def _run(self, program: str, *arguments: str) -> None:
        self.host.namespaces.run(*self._as_user, os.path.join(self._binaries, program), *arguments)
