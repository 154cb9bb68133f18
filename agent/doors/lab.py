"""`prudent lab`: the practice ground, a worker to practise on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from agent.doors.terminal import console, print_json, shown
from agent.errors import OutOfBounds, WorkerDown
from evals.lab import ground
from evals.lab.faults import DEFAULT_FAULTS, FAULTS, listing
from evals.lab.pace import NOISES, noise_of
from evals.lab.posts import Supervision, Topology

lab = typer.Typer(help="The practice ground: a worker to practise on.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--directory", "-d", help="Where it lives.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
HERE = Path("prudent-lab")


@lab.command("up")
def up(
    directory: Directory = HERE,
    engine: Annotated[Literal["sglang", "vllm"], typer.Option(help="The engine that it is.")] = "sglang",
    version: Annotated[str | None, typer.Option(help="The engine's version; left out: the usual one.")] = None,
    topology: Annotated[
        Topology, typer.Option(help="One worker, or a prefill and a decode worker behind a router.")
    ] = "single",
    supervision: Annotated[
        Supervision, typer.Option(help="Who keeps it running: the small supervisor, or systemd.")
    ] = "supervisor",
    fault: Annotated[
        list[str] | None,
        typer.Option(help="A fault that the worker has, as NAME or NAME:key=value,...; left out: the usual ones."),
    ] = None,
    sound: Annotated[bool, typer.Option("--sound", help="No fault at all.")] = False,
    seed: Annotated[int, typer.Option(help="Seeds noise and faults.")] = 0,
    noise: Annotated[
        str, typer.Option(help=f"How much it varies: {', '.join(NOISES)}, or two shares as in 0.01,0.02.")
    ] = "slight",
    errors: Annotated[
        float, typer.Option(min=0, max=1, help="Share of calls that the model by itself gets wrong; a real one: 0.002.")
    ] = 0.0,
    cold: Annotated[bool, typer.Option("--cold", help="Nothing has been compiled yet: a slow first start.")] = False,
    start_speed: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Seconds of life a second while it starts.")
    ] = 35.0,
    serve_speed: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Seconds of life a second while it serves.")
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """Start a practice worker with a settings file beside it."""
    faults = () if sound else DEFAULT_FAULTS if fault is None else tuple(fault)
    try:
        varies = noise_of(noise)
        made = ground.up(
            directory,
            seed=seed,
            faults=faults,
            engine=engine,
            version=version,
            topology=topology,
            supervision=supervision,
            boot_noise=varies.boot,
            run_noise=varies.run,
            start_speed=start_speed,
            serve_speed=serve_speed,
            cold=cold,
            errors=errors,
        )
    except ValueError as error:
        raise OutOfBounds(f"{str(error)[:1].upper()}{str(error)[1:]}.", "Name one of those, or none.") from error
    except ground.GroundError as error:
        raise WorkerDown(f"The practice worker did not come up: {error}", "Nothing of it is left running.") from error
    if as_json:
        posts = [{key: str(value) for key, value in post._asdict().items()} for post in made.posts]
        print_json({**{key: str(value) for key, value in made._asdict().items()}, "posts": posts})
        return
    out = console()
    out.print(shown(f"A worker answers on port {made.port}. Its settings: {made.settings}"))
    if topology == "pd":
        out.print(shown(f"It is the decode side of a pair; users are served at {made.entry}"))
    out.print(shown(f'Try it:  cd {made.directory} && prudent ask "bump cuda graphs to 96"'))


@lab.command("down")
def down(directory: Directory = HERE, as_json: Json = False) -> None:
    """Stop a practice worker and all that belongs to it."""
    try:
        ran = ground.down(directory)
    except ground.GroundError as error:
        raise WorkerDown(f"The practice worker could not be stopped: {error}", "See what its keeper says.") from error
    if as_json:
        print_json({"ran": ran})
    else:
        console().print("Stopped." if ran else "Nothing was running there.")


@lab.command("status")
def status(directory: Directory = HERE, as_json: Json = False) -> None:
    """Say whether a practice worker runs."""
    try:
        said = ground.status(directory)
    except ground.GroundError as error:
        raise WorkerDown(f"Nobody says how the practice worker is: {error}", "See what its keeper says.") from error
    if as_json:
        print_json(said._asdict())
        return
    out = console()
    for key, value in said._asdict().items():
        if key != "beside":
            out.print(shown(f"{key}: {value}"))
    for name, state, port in said.beside:
        out.print(shown(f"{name}: {state}, port {port}"))


@lab.command("faults")
def faults(as_json: Json = False) -> None:
    """List what can be wrong with a practice worker, with parameters, defaults and bounds."""
    if not as_json:
        console().print(shown(listing().rstrip("\n")))
        return
    print_json(
        {
            name: {
                "meaning": kind.meaning,
                "parameters": {
                    key: {"default": parameter.default, "bounds": parameter.bounds, "meaning": parameter.meaning}
                    for key, parameter in kind.all_parameters().items()
                },
            }
            for name, kind in FAULTS.items()
        }
    )
