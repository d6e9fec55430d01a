"""TLS from files, mutual or not. The certificates are made here with ``openssl``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from net.wiring import STORED, Inbox, Run, bare_socket, dialled, serving, until
from outside import program
from trunkline.errors import ConfigError, Unreachable
from trunkline.net.dial import HandshakeRefused, dial
from trunkline.net.limits import MIB, Limits
from trunkline.net.tls import client_tls, server_tls


def openssl(*arguments: str | Path) -> None:
    subprocess.run([program("openssl"), *arguments], check=True, capture_output=True)


def authority(directory: Path, name: str) -> Path:
    certificate = directory / f"{name}.pem"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", directory / f"{name}.key", "-out", certificate),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
    )
    return certificate


def signed(directory: Path, name: str, by: str) -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", key, "-out", certificate),
        *("-CA", directory / f"{by}.pem", "-CAkey", directory / f"{by}.key"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"),
    )
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    for name in ("ours", "theirs"):
        authority(directory, name)
    signed(directory, "server", by="ours")
    signed(directory, "client", by="ours")
    signed(directory, "stranger", by="theirs")
    return directory


def test_messages_travel_over_mutual_tls(run: Run, files: Path) -> None:
    async def scene() -> None:
        inbox = Inbox()
        serving_tls = server_tls(files / "server.pem", files / "server.key", files / "ours.pem")
        dialling_tls = client_tls(files / "ours.pem", files / "client.pem", files / "client.key")
        async with serving(tls=serving_tls) as server, dialled(server, inbox, tls=dialling_tls) as connection:
            bodies = [bytes([at]) * size for at, size in enumerate((0, 1, 70_000, 3 * MIB))]
            for token in range(5):
                assert connection.send("r", token, STORED, bodies)
            for token in range(5):
                _, envelope, attachments = await inbox.next()
                assert envelope.token == token
                assert list(attachments) == bodies
            connection.send("r", 9, STORED)

    run(scene())


def test_a_client_without_a_certificate_or_with_a_foreign_one_is_turned_away(run: Run, files: Path) -> None:
    async def scene() -> None:
        mutual = server_tls(files / "server.pem", files / "server.key", files / "ours.pem")
        foreign = client_tls(files / "ours.pem", files / "stranger.pem", files / "stranger.key")
        async with serving(tls=mutual) as server:
            for tls in (client_tls(files / "ours.pem"), foreign):
                with pytest.raises(Unreachable):
                    await dial("127.0.0.1", server.port, name="x", handler=Inbox(), tls=tls)
            assert server.accepted == 0

    run(scene())


def test_a_server_with_a_foreign_certificate_is_not_trusted(run: Run, files: Path) -> None:
    async def scene() -> None:
        foreign = server_tls(files / "stranger.pem", files / "stranger.key")
        async with serving(tls=foreign) as server:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await dial("127.0.0.1", server.port, name="x", handler=Inbox(), tls=client_tls(files / "ours.pem"))

    run(scene())


def test_a_refusal_arrives_over_tls_and_plain_bytes_do_no_harm(run: Run, files: Path) -> None:
    async def scene() -> None:
        inbox, tls = Inbox(), client_tls(files / "ours.pem")
        limits = Limits(handshake_ms=300, linger_ms=100)
        certified = server_tls(files / "server.pem", files / "server.key")
        async with serving(tls=certified, token="secret", limits=limits) as server, bare_socket(server) as peer:
            await peer.send(b"\x00" * 100)
            with pytest.raises(HandshakeRefused, match="the token is missing or wrong"):
                await dial("127.0.0.1", server.port, name="x", handler=inbox, tls=tls)
            async with dialled(server, inbox, tls=tls, token="secret") as connection:
                connection.send("r", 1, STORED)
                await inbox.next()
            await peer.closed()
            await until(lambda: server.connections == 0)

    run(scene())


def test_a_plain_client_of_a_tls_server_gets_an_error(run: Run, files: Path) -> None:
    async def scene() -> None:
        async with serving(tls=server_tls(files / "server.pem", files / "server.key")) as server:
            with pytest.raises(Unreachable, match="check the address, and whether it needs TLS"):
                await dial("127.0.0.1", server.port, name="x", handler=Inbox(), timeout_ms=2_000)

    run(scene())


def test_files_that_cannot_be_used_are_configuration_errors(files: Path) -> None:
    with pytest.raises(ConfigError, match="give a PEM pair that belongs together"):
        server_tls(files / "server.pem", files / "client.key")
    with pytest.raises(ConfigError, match="give a PEM certificate"):
        client_tls(files / "nowhere.pem")
    with pytest.raises(ConfigError, match="give both files or none"):
        client_tls(files / "ours.pem", files / "client.pem")
