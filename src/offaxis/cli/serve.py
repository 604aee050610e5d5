"""``offaxis serve``: a bundle behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from offaxis.cli.app import Device, Network, app, example, print_note
from offaxis.errors import ArgumentError, MissingPackageError


@app.command("serve", epilog=example("offaxis serve digits.oax --port 8000"))
def serve_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default this machine alone is served.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that requests must carry (else OFFAXIS_TOKEN).")
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="OFFAXIS_TOKEN", hidden=True)] = None,
    level: Annotated[float, typer.Option(help="Probability that the drift monitor ever raises a false alarm.")] = 0.01,
    max_body: Annotated[int, typer.Option(min=1, help="Megabytes of one request.")] = 16,
    max_images: Annotated[int, typer.Option(min=1, help="Images of one request.")] = 32,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of one image.")] = 16_000_000,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait; more are answered with 503.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Images that go through the network together.")] = 32,
    network: Network = None,
    device: Device = "auto",
) -> None:
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, and a page at /."""
    from offaxis.deploy.bundle import load

    try:
        from offaxis.server.body import Limits
        from offaxis.server.run import is_local, make_server, serve
    except ImportError as error:
        raise MissingPackageError(
            f"The service needs more packages ({error}): pip install 'offaxis[serve]'."
        ) from error
    limits = Limits(
        body_bytes=max_body * 2**20,
        bodies_bytes=max(max_body * 2**20, Limits.bodies_bytes),
        images=max_images,
        pixels=max_pixels,
        queue=queue,
        batch=batch,
    )
    model = load(bundle, network).to(device)
    secret = _token(token_file, token)
    server = make_server(model, host=host, port=port, token=secret, limits=limits, level=level)
    if secret is None and not is_local(host):
        print_note(f"Every client that reaches {host} can use this service: --token-file requires a token.", "yellow")
    print_note(f"offaxis serves {bundle} at http://{host}:{port}  (Ctrl-C stops it)")
    serve(server)


def _token(file: Path | None, given: str | None) -> str | None:
    if file is None:
        return given or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"Expected a token in {file} but it cannot be read ({error}).") from error
    if not text:
        raise ArgumentError(f"Expected a token in {file} but it is empty.")
    return text
