"""Data are prepared and partitioned in a process of its own: if that takes all memory, not the runner dies, but it.

Run as `python -P -m harness.launch.preparing`, a request as JSON on its standard input, what it does and what came of
it as lines of JSON on its standard output. The kernel's OOM killer takes it before anything else of the user's.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import DataUnavailable, UserError
from harness.launch.process import oom_kills
from harness.launch.runner_process import start_runner
from harness.results.record import Status
from harness.suite.schema import TrialConfig

OOM_SCORE = 900  # of 1000 at most: what the kernel adds when it looks for what to kill
LOG_BYTES = 8192


class NotPrepared(Exception):  # noqa: N818 - what happened, and to whom, not a mistake
    """Preparing data ended otherwise than with data, or a UserError or DataUnavailable.

    `status` is that of the trials that need them, `log` the end of what the process wrote.
    """

    def __init__(self, status: Status, reason: str, log: str = "") -> None:
        self.status, self.log = status, log
        super().__init__(reason)


def prepare_apart(
    trial: TrialConfig,
    data_dir: Path | None,
    cache: Path | None,
    tell: Callable[[str], None],
    *,
    partitioned: bool = True,
) -> None:
    """Have what `trial` reads prepared, and `partitioned`, in `cache`, by a process that ends with this one.

    Raises what `InputCache.get` does, and NotPrepared.
    """
    places = {key: None if path is None else str(path) for key, path in (("data_dir", data_dir), ("cache", cache))}
    request = {"trial": trial.model_dump(mode="json"), "partitioned": partitioned, **places}
    kills, doing, end = oom_kills(), "preparing data", dict[str, str]()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as asked:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        process = start_runner(
            [sys.executable, "-P", "-m", __name__], stdin=asked, stdout=-1, stderr=said, start_new_session=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                end = json.loads(line)
                if "doing" in end:
                    tell(doing := end["doing"])
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        said.seek(max(0, said.seek(0, 2) - LOG_BYTES))
        log = said.read().decode(errors="replace")
    _raise_for(code, end, doing, log, oom=oom_kills() > kills)


def _raise_for(code: int, end: dict[str, str], doing: str, log: str, *, oom: bool) -> None:
    if code == 0 and "done" in end:
        return
    if "unavailable" in end:
        raise DataUnavailable(end["unavailable"], end["command"])
    if "mistake" in end:
        raise UserError(end["mistake"])
    if "memory" in end:
        raise NotPrepared("oom", f"out of memory while {doing}: {end['memory']}", log)
    if "error" in end:
        raise NotPrepared("error", f"{end['error']} while {doing}", log)
    if code == -signal.SIGKILL and oom:
        why = "the machine or its memory limit ran out of memory"
        raise NotPrepared("oom", f"the process was killed by signal 9 (SIGKILL) while {doing}: {why}", log)
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"
    raise NotPrepared("error", f"the process {how} while {doing}", log)


def main() -> None:
    """Prepare what the request names, and say what came of it."""
    with suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    from harness.launch.inputs import InputCache

    out = sys.stdout
    sys.stdout = sys.stderr  # for what libraries print

    def say(**what: str) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    request: dict[str, Any] = json.load(sys.stdin)
    data_dir, cache = (None if request[key] is None else Path(request[key]) for key in ("data_dir", "cache"))
    try:
        inputs, trial = InputCache(data_dir, cache), TrialConfig.model_validate(request["trial"])
        make = inputs.get if request["partitioned"] else inputs.graph
        make(trial, lambda text: say(doing=text))
    except DataUnavailable as missing:
        say(unavailable=missing.reason, command=missing.command)
    except UserError as error:
        say(mistake=str(error))
    except MemoryError as error:
        say(memory=" ".join(str(error).split()))
    except Exception as error:
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
    else:
        say(done="")


if __name__ == "__main__":
    main()
