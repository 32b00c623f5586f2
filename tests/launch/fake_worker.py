"""Stands in for the worker: reads the same job, leaves the same files, trains nothing.

The environment variable FAKE_RANKS, a JSON object from rank ("0", or "0 of seed 7"), says what a rank does:
ok (default), exit1, kill, hang, stubborn (hangs and ignores SIGTERM), lost (waits, then reports a lost
connection), nothing (ends with 0 and no result), damaged, child (leaves a process behind), orphan (detaches one, then
hangs), a status, or a JSON object: what the report says instead.
FAKE_SECONDS is how long an `ok` rank takes; FAKE_LEDGER a file that rank 0 appends its trial to at its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.runtime import exit_with_launcher


def main() -> None:
    rank = int(os.environ["RANK"])
    job = json.loads(Path(sys.argv[1]).read_text())
    out = Path(job["out"])
    exit_with_launcher()
    (out / f"pid-{rank}").write_text(str(os.getpid()))
    print(f"hello from rank {rank}")
    if rank == 0:
        with (out / "progress.jsonl").open("a", buffering=1) as stream:
            for epoch in range(3):
                event = {"event": "epoch", "epoch": epoch, "epochs": 10, "loss": 1.0, "val": None, "s_per_epoch": 0.1}
                stream.write(json.dumps(event) + "\n")
    told = json.loads(os.environ.get("FAKE_RANKS", "{}"))
    behave(told.get(f"{rank} of seed {job['config'].get('seed')}") or told.get(str(rank), "ok"), rank, out, job)


def behave(what: str, rank: int, out: Path, job: dict) -> None:
    if what == "exit1":
        sys.exit("ValueError: planted")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what in ("hang", "stubborn", "orphan"):
        hang(out / f"pid-{rank}-child" if what == "orphan" else None)
    if what == "damaged":
        (out / f"rank{rank}.json").write_text('{"rank": 0, "sta')
    if what in ("nothing", "damaged"):
        return
    if what == "child":
        child = subprocess.Popen(["sleep", "600"])
        (out / f"child-{rank}").write_text(str(child.pid))
        what = "ok"
    if what == "lost":
        time.sleep(0.5)
        finish(rank, out, "error", "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4242")
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if rank == 0 and (ledger := os.environ.get("FAKE_LEDGER")):
        with open(ledger, "a") as stream:
            stream.write(json.dumps(job["config"], sort_keys=True) + "\n")
    others = json.loads(what) if what.startswith("{") else {}
    status = "ok" if others else what
    finish(rank, out, status, None if status == "ok" else f"planted {what}", **others)


def hang(detaching: Path | None) -> None:
    if detaching:
        command = "env -i setsid sleep 600 >/dev/null 2>&1 & echo $!"
        detaching.write_bytes(subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=True).stdout)
    time.sleep(600)


def finish(rank: int, out: Path, status: str, reason: str | None, /, **others: object) -> None:
    epochs = [
        {"epoch": i, "rank": rank, "epoch_time_s": 0.1, "time_forward_s": 0.1, "bytes_embedding": 8, "loss": 1.0}
        | {"lr": 0.01, "train_score": 0.5, "val_score": 0.5, "test_score": 0.5, "eval_s": 0.0, "stats": {}}
        for i in range(10)
    ]
    summary = {"best_val": 0.5, "test_at_best_val": 0.5, "best_epoch": 0, "final_val": 0.5, "final_test": 0.5}
    summary |= {"final_loss": 1.0, "target_epoch": None, "epochs": 10, "warmup_epochs": 1, "checksum": "0"}
    summary |= {"spmm": "torch", "parameters": 1, "stopped": "epochs"}
    result = {"rank": rank, "status": status, "reason": reason, "inner": 5, "boundary": 2, "edges": 9, "train_nodes": 3}
    result |= {"setup_s": 0.1, "eval_s": 0.1, "peak_memory_bytes": 1000, "peak_memory_source": "VmHWM"}
    result |= {"traffic": [], "summary": summary, "epochs": epochs}
    result |= others
    temporary = out / f"rank{rank}.tmp"
    temporary.write_text(json.dumps(result))
    temporary.rename(out / f"rank{rank}.json")
    sys.exit(0 if status == "ok" else 3)


if __name__ == "__main__":
    main()
