#!/usr/bin/env python3
"""Measures `ah agent record` beside `script -q` on the same command, for scripts/bench; prints JSON.

    scripts/recordings/measure.py AH FOLDER [MEGABYTES] [RUNS]

Throughput: wall-clock time of `yes | head -c …` recorded, output to nowhere, the two in turn, the median of the runs. Latency: a
byte typed into a terminal on which `cat` runs in raw mode, until it comes back, with and without the recorder between, in turn.
Memory: the most that the recorder's processes held. Each recording is deleted after it was seen to be whole: what was not written counts for nothing.
"""

import json, os, pathlib, pty, resource, select, signal, statistics, subprocess, sys, termios, time, tty


def throughput(ah, folder, size, runs):
    command = f"yes | head -c {size}"
    lines = {
        "script": ["script", "-q", "-c", command, os.path.join(folder, "typescript")],
        "ah": [ah, "agent", "record", "-q", "--", "sh", "-c", command],
    }
    times, peak = {name: [] for name in lines}, 0
    # What each writes, and how many bytes for a line of `yes`: `y\r\n`, which JSON has to escape.
    written = {
        "script": (lambda: pathlib.Path(folder, "typescript"), 3),
        "ah": (lambda: only(pathlib.Path(os.environ["AH_HOME"])), 5),
    }
    for _ in range(runs):
        for name, line in lines.items():
            start = time.monotonic()
            # Without any terminal both have a pty; with one for errors alone `ah` would have a pipe.
            null = subprocess.DEVNULL
            child = subprocess.Popen(line, stdin=null, stdout=null, stderr=null, cwd=folder)
            _, status, use = os.wait4(child.pid, 0)
            times[name].append(time.monotonic() - start)
            child.returncode = status
            if status:
                sys.exit(f"error: {line} ended with {status}")
            if name == "ah":
                peak = max(peak, use.ru_maxrss / 1024)
            file, each = written[name]
            file = file()
            if file.stat().st_size < size // 2 * each:
                sys.exit(f"error: {file} has only {file.stat().st_size} bytes: is the disk full?")
            # What was written is not what is measured next.
            file.unlink()
            os.sync()
    return {name: statistics.median(of) for name, of in times.items()}, peak


def only(home):
    """The only recording below it."""
    found = list(home.glob("workspaces/*/sessions/*/recording*.cast"))
    if len(found) != 1:
        sys.exit(f"error: one recording was to be there, not {found}")
    return found[0]


def latency(line, folder, keys):
    """The median seconds from a key typed to its coming back."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvp(line[0], line)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(fd, 4096)
    time.sleep(0.3)
    while select.select([fd], [], [], 0)[0]:
        os.read(fd, 4096)
    took = []
    for number in range(keys):
        key = bytes([97 + number % 26])
        start = time.perf_counter()
        os.write(fd, key)
        while key not in os.read(fd, 64):
            pass
        took.append(time.perf_counter() - start)
        time.sleep(0.005)
    os.close(fd)
    try:
        os.kill(pid, signal.SIGHUP)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)
    return statistics.median(took)


def main():
    ah, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    megabytes, runs = (int(word) for word in (sys.argv[3:] + ["1024", "5"][len(sys.argv) - 3:])[:2])
    os.environ.update(AH_HOME=os.path.join(folder, "home"), AH_HELPER_SOCKET="")
    for name in ("AH_SESSION", "AH_RECORDING", "AH_PROVIDER_PATH"):
        os.environ.pop(name, None)
    workspace = os.path.join(folder, "workspace")
    os.makedirs(workspace, exist_ok=True)
    # More than a recording may have.
    subprocess.run([ah, "config", "set", "prune.recordings", "max-size=1T"], cwd=workspace, check=True, stdout=subprocess.DEVNULL)
    times, peak = throughput(ah, workspace, megabytes << 20, runs)
    echo = ["sh", "-c", "stty raw -echo; echo ready; exec cat"]
    bare, recorded = [], []
    for _ in range(3):
        bare.append(latency(echo, workspace, 200))
        recorded.append(latency([ah, "agent", "record", "-q", "--"] + echo, workspace, 200))
    print(json.dumps({
        "megabytes": megabytes, "script_s": times["script"], "ah_s": times["ah"], "peak_mb": peak,
        "bare_ms": statistics.median(bare) * 1000, "recorded_ms": statistics.median(recorded) * 1000,
    }))


if __name__ == "__main__":
    main()
