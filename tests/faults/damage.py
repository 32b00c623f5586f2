"""What a run keeps, and finds damaged, cut short or gone when it comes back."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.faults.case import FAILURE, Case, Kind, TooLate
from tests.faults.oracle import WRONG, Finding
from tests.faults.place import LIMIT_S

Harm = Callable[[Path, random.Random], None]
MISTAKE = 2  # exit code


def flip(path: Path, rng: random.Random) -> None:
    """Turn one bit of a file around."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    """Leave the beginning of a file, as a power failure may."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(max(1, len(content)))])


def blank(path: Path, _rng: random.Random) -> None:
    """Leave a file's size and no content, as a power failure may."""
    path.write_bytes(bytes(path.stat().st_size))


def scramble(path: Path, rng: random.Random) -> None:
    """Leave something else."""
    path.write_bytes(rng.randbytes(rng.randrange(1, 5000)))


def remove(path: Path, _rng: random.Random) -> None:
    """Delete a file."""
    path.unlink()


HARMS: dict[str, Harm] = {"one bit": flip, "cut short": cut, "zeros": blank, "garbage": scramble, "deleted": remove}


def kinds() -> Iterator[Kind]:
    """Yield a kind for each thing that is kept and each harm."""
    for what, harm in HARMS.items():
        yield Kind(f"prepared data: {what}", partial(of_cache, harm=harm, folder="datasets"), FAILURE)
        yield Kind(f"partitions: {what}", partial(of_cache, harm=harm, folder="partitions"), FAILURE)
        yield Kind(f"a record: {what}", partial(of_results, harm=harm, pattern="[!.]*/record.json"))
    for what in ("one bit", "cut short", "deleted"):
        yield Kind(f"epochs of a record: {what}", partial(of_results, harm=HARMS[what], pattern="[!.]*/epochs.parquet"))
        yield Kind(f"a lease: {what}", partial(of_results, harm=HARMS[what], pattern=".leases/*"))
        yield Kind(f"suite.json: {what}", partial(of_results, harm=HARMS[what], pattern="suite.json"))
        yield Kind(f"checkpoints: {what}", partial(of_checkpoints, harm=HARMS[what]), chained=True)
    yield Kind("a record's directory: deleted", partial(of_results, harm=_remove_all, pattern="[!.]*/record.json"))


def of_cache(case: Case, harm: Harm, folder: str) -> None:
    """Harm a file of the cache before anything runs. What the run tells of is deleted, and no more than that."""
    entry = case.rng.choice([path for path in sorted(case.place.cache.joinpath(folder).glob("[!.]*")) if path.is_dir()])
    chosen = case.rng.choice(sorted(path for path in entry.rglob("*") if path.is_file()))
    case.say(str(chosen.relative_to(case.place.cache)))
    harm(chosen, case.rng)
    if case.end(command := case.place.start()) != 0:
        case.say(f"told: {told(command.said())}")
        if str(entry) not in command.said():
            case.findings.append(Finding(WRONG, "what is told does not name the place"))
        shutil.rmtree(entry)


def flagged(case: Case) -> str:
    """Return what readers of the results are told of trials whose files are not what was written."""
    code = "import harness, sys\nprint(*harness.load_results(sys.argv[1])['flags'])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(case.place.trials)],
        env=case.place.environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return "".join(re.findall(r"edited: [^']*", done.stdout))


def of_checkpoints(case: Case, harm: Harm) -> None:
    """End a run in the midst of a training, and harm one of its checkpoints."""
    command = case.place.start()
    trials = case.rng.randrange(2)
    case.wait(command, lambda: case.place.records() >= trials and bool(_checkpoints(case)))
    command.process.send_signal(case.rng.choice((signal.SIGKILL, signal.SIGTERM)))
    case.end(command)
    if not (files := _checkpoints(case)):
        raise TooLate
    harm(chosen := case.rng.choice(files), case.rng)
    case.say(f"{chosen.name}, one of {len(files)}")


def _checkpoints(case: Case) -> list[Path]:
    return sorted(case.place.trials.glob(".checkpoints/*/*/rank*"))


def told(said: str) -> str:
    """Return the line of what was printed that says what is wrong."""
    lines = said.strip().splitlines()
    return next(
        (line.strip() for line in lines if "error" in line.split()[:1] + line.split(":")[:1]), "".join(lines[-1:])
    )


def of_results(case: Case, harm: Harm, pattern: str) -> None:
    """Harm a file of whole results. A record that is passed over is made again; what a run refuses is deleted."""
    shutil.rmtree(case.place.results)
    shutil.copytree(case.home.results, case.place.results)
    chosen = case.rng.choice(sorted(case.place.trials.glob(pattern)))
    case.say(str(chosen.relative_to(case.place.trials)))
    harm(chosen, case.rng)
    if chosen.parent != case.place.trials and not (chosen.parent / "record.json").exists():
        case.again[chosen.parent.name] += 1
    command = case.place.start()
    is_mistake = case.end(command) == MISTAKE
    if not is_mistake and (passed := re.findall(r"^warning: passed over: (.*)$", command.said(), re.M)):
        case.say(f"told: {passed[0]}")
        if str(chosen) not in passed[0]:
            case.findings.append(Finding(WRONG, "what is passed over is not the file"))
        case.again[chosen.parent.name] += 1
        return
    said = command.said() if is_mistake else flagged(case)
    if said:
        case.say(f"told: {told(said)}")
        if chosen.name not in said:
            case.findings.append(Finding(WRONG, "the mistake that is told does not name the file"))
        if chosen.parent == case.place.trials:
            chosen.unlink()
        else:
            case.again[chosen.parent.name] += 1
            shutil.rmtree(chosen.parent)


def _remove_all(path: Path, _rng: random.Random) -> None:
    shutil.rmtree(path.parent)
