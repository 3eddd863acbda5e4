"""The `moe-dispatch` command: finds the sub-command, and turns expected trouble into one message and an exit code.

Each sub-command is a file of this package, imported only when it is the one that was asked for; its own imports happen
inside its function. So `--help` starts fast and loads none of torch, numpy and the measuring code.
Exit codes: 0 done, 1 an error finding or no valid verdict, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated

import typer

from moe_dispatch import __version__
from moe_dispatch.core.errors import MoeDispatchError

COMMANDS = {
    "select": "Measure the dispatchers that can run here, and write a proven verdict and its configuration.",
    "doctor": "Say what this machine is and why a backend will or will not run, on every rank of a job.",
    "advise": "Say which dispatchers are worth measuring for a workload on a site, and why; runs nothing.",
    "bench": "Measure chosen dispatchers; a table and records, no verdict.",
    "smoke": "Train a small real model for a few steps through every dispatcher that is here.",
    "ingest": "Read training logs, configuration dumps and profiles into records.",
    "compare": "Check stored records against one contract and give the verdict over them.",
    "emit": "Write a dispatcher and its knobs as Megatron-LM arguments and Megatron-Bridge overrides.",
    "lint": "Check a Megatron configuration before a job is spent: what really runs, and what is wrong with it.",
    "plan": "Write the matched training A/B of a workload as scripts for one allocation.",
    "report": "Make the HTML report of a store.",
    "evidence": "Search published measurements, pairs and recipes, with own records beside them.",
    "card": "Generate the evidence card of a model or family, as YAML.",
    "models": "List the model catalogue, or show one model.",
    "hardware": "List the hardware catalogue, or what this machine is.",
    "backends": "List the dispatcher backends, with their gate on request.",
}
"""Sub-command (also its module in this package) -> its line in `--help`."""

EXIT_INTERRUPTED = 130
_OUTPUT_ERRNOS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)

_UsageProblem: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's own usage error; typer exports only this subclass of it, and different releases keep it elsewhere."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process.

    Args:
        arguments: without the program's name; None takes them from the process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    try:
        code = _build(given, as_json)(args=given, prog_name="moe-dispatch", standalone_mode=False)
    except typer.Abort:
        code = _interrupted(as_json)
    except _UsageProblem as problem:
        code = _usage(problem, as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _build(given: list[str], as_json: bool) -> typer.Typer:
    """An app in which only the sub-command that was asked for is real; the others are lines of `--help`."""
    app = typer.Typer(
        name="moe-dispatch",
        help="Which token dispatcher should this mixture-of-experts training job use here? Answered by measurement.",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        """Global options."""

    asked = next((argument for argument in given if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        body = _load(name, as_json) if name == asked else _placeholder
        app.command(name, short_help=summary, help=body.__doc__ or summary)(body)
    return app


def _load(name: str, as_json: bool) -> Callable[..., None]:
    """The sub-command's function, which returns an exit code or None, behind the handling of expected errors."""
    command = getattr(importlib.import_module(f"moe_dispatch.cli.{name}"), name)

    @functools.wraps(command)
    def guarded(*args: object, **kwargs: object) -> None:
        signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except MoeDispatchError as error:
            code = _failed(error, as_json)
        except OSError as error:
            if error.errno not in _OUTPUT_ERRNOS:
                raise
            code = _no_output(error)
        except KeyboardInterrupt:
            code = _interrupted(as_json)
        raise typer.Exit(code or 0)

    return guarded


def _placeholder() -> None:
    """Never called: stands for a sub-command that was not asked for."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"moe-dispatch {__version__}")
        raise typer.Exit


def _failed(error: MoeDispatchError, as_json: bool) -> int:
    if as_json:
        kind = type(error).__name__
        _print_error(kind=kind, message=error.message, fix=error.fix, exit_code=error.exit_code)
    else:
        print(f"moe-dispatch: {error}", file=sys.stderr)
    return error.exit_code


def _no_output(error: OSError) -> int:
    """The reader of a pipe went away, or the disk behind stdout is full: what is still buffered cannot go anywhere."""
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        what = error.filename or "the output"
        print(f"moe-dispatch: {what} cannot be written: {error.strerror}\n  fix: free space there", file=sys.stderr)
    return 1


def _interrupted(as_json: bool) -> int:
    message = "interrupted; every finished record is kept"
    if as_json:
        _print_error(kind="Interrupted", message=message, fix="", exit_code=EXIT_INTERRUPTED)
    else:
        print(f"moe-dispatch: {message}", file=sys.stderr)
    return EXIT_INTERRUPTED


def _usage(problem: BaseException, as_json: bool) -> int:
    """Report what the parser refused. `show` and `format_message` are part of every release of its usage error."""
    if as_json:
        message = str(problem.format_message()) if hasattr(problem, "format_message") else str(problem)
        _print_error(kind="UsageError", message=message, fix="see --help", exit_code=2)
    elif hasattr(problem, "show"):
        problem.show()
    return 2


def _print_error(*, kind: str, message: str, fix: str, exit_code: int) -> None:
    print(json.dumps({"error": {"type": kind, "message": message, "fix": fix, "exit_code": exit_code}}))


def _as_interrupt(_signum: int, _frame: FrameType | None) -> None:
    """A batch system's SIGTERM ends the work as Ctrl-C does: children stopped, records kept."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
