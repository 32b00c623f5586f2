"""The `harness` command: subcommands by what they work on; what is slow to import is imported where it is used."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from harness.cli import advise, authoring, compare, data, doctor, plan, results, run, tune
from harness.cli.command_options import Command
from harness.errors import DataUnavailable, UserError, of_system, printable

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(
    name="harness",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from harness.version import __version__

        typer.echo(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Benchmark distributed GNN training: same model, same partition, every method."""


for _command in (
    run.run,
    authoring.check,
    plan.plan,
    advise.advise,
    authoring.suites,
    run.warm,
    tune.tune,
    results.status,
    results.report,
    results.check_claims,
    compare.compare,
    compare.history,
    results.merge,
    results.export,
    compare.project,
    data.partition,
    authoring.schema,
    doctor.doctor,
):
    app.command(cls=Command)(_command)
app.add_typer(data.list_app, name="list")
authoring.new_app.command()(authoring.suite)
app.add_typer(authoring.new_app, name="new")
app.add_typer(data.data_app, name="data")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, of this process without `arguments`.

    A program that gives `arguments` keeps its own signal handlers.
    Exit code 0: all ok; 1: trials failed; 2: the user's mistake; 130: Ctrl-C.
    """
    os.umask(os.umask(0o077) | 0o002)  # the user's, but what is written is code and data of later runs: not for all
    gc.set_threshold(100_000, 50, 100)  # imports make little garbage: looking for it takes a fifth of a start
    atexit.register(gc.freeze)  # and the interpreter would look through all of it again at its end
    before, hook = {each: signal.getsignal(each) for each in _ENDING}, sys.unraisablehook
    try:
        app(args=None if arguments is None else [*arguments])
    except (UserError, DataUnavailable) as error:
        _end(error)
    except OSError as error:
        known = of_system(error)
        if known is None:
            raise
        _end(known)
    finally:
        if arguments is None:
            _pass_first_signals()
            _leave_threads(sys.exception())
        else:  # some commands set handlers that end them in an orderly way
            sys.unraisablehook = hook
            for each, handler in before.items():
                if signal.getsignal(each) != handler:
                    signal.signal(each, handler)


def _pass_first_signals() -> None:
    # A first Ctrl-C or SIGTERM passes while the interpreter ends, where it gave a traceback; a second ends it.
    for each in _ENDING:
        if callable(signal.getsignal(each)):
            signal.signal(each, lambda number, _: signal.signal(number, signal.SIG_DFL))


def _leave_threads(ending: BaseException | None) -> None:
    # The interpreter would wait for those that a plugin started.
    registry = sys.modules.get("harness.registry")
    alive = [thread.name for thread in (registry.THREADS if registry else ()) if thread.is_alive()]
    if alive and isinstance(ending, SystemExit):
        with suppress(OSError):
            print(printable(f"threads of a plugin still run, and end here: {', '.join(alive)}"), file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ending.code if isinstance(ending.code, int) else int(ending.code is not None))


def _end(error: UserError | DataUnavailable) -> NoReturn:
    with suppress(OSError):  # the disk of standard error may be the full one
        for line in str(error).splitlines() if isinstance(error, UserError) else [printable(str(error))]:
            print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
