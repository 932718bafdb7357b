"""The part `agentfs` of scripts/bench: AgentFS beside the disk itself, and beside other filesystems that lay changes over a directory.

Each place is a directory that can be written over the same lower one, on the same disk, and all are asked to do the same, one after the other in each round, so
that a noisy machine is as unkind to all. All lie beside each other, as what is above a file is part of what looking at it costs.
"""

import os, pathlib, shutil, signal, statistics, subprocess, time

DISK, OURS = "the disk itself", "AgentFS"
FILES = 10_000
# Ratio of times to the disk's, at most.
BARS = {"git clone": 2.0, "git status, warm": 1.0, "rg, warm": 1.2, "cargo build": 1.15, "untar": 2.0, "rm -rf": 2.0, "stat, cached": 1.3,
        "write 1 GiB and fsync": 2.0, "read 1 GiB, warm": 1 / 0.9, "read 1 GiB, cold": 2.0,
        "read 1 GiB, passed through, warm": 1 / 0.9, "read 1 GiB, passed through, cold": 1 / 0.9}


def run(command, **options):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, executable="/bin/bash", **options)
    if done.returncode:
        raise SystemExit(f"error: {command}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def rounds(bench):
    return max(3, bench.options.runs // 3)


class Places:
    """The directories, made when they are asked for and taken away at the end."""

    def __init__(self, bench, lower):
        self.bench, self.lower, self.undo = bench, lower, []
        self.at = {}

    def folders(self, name, *kinds):
        made = [self.bench.work / f"{name}-{kind}" for kind in kinds]
        for folder in made:
            folder.mkdir()
        return made

    def mounted(self, name, at, command):
        if subprocess.run(command, shell=True, capture_output=True, cwd=at.parent).returncode:
            print(f"{name} cannot be mounted here", flush=True)
            return
        self.undo.append(f"cd / && for n in $(seq 20); do umount {at} && break; sleep 0.5; done")
        self.at[name] = at

    def __enter__(self):
        bench, lower = self.bench, self.lower
        self.at[DISK] = self.folders("disk", "at")[0]
        self.undo.append(f"cd {lower} && {bench.ah} agent fs rm --force b || true")
        branch = f"{bench.ah} agent fs branch --provider agentfs --mode cow-overlay --name b --at {bench.work}/agentfs-at"
        self.at[OURS] = pathlib.Path(run(branch, env=bench.env, cwd=lower))
        if os.geteuid() == 0:
            at, upper, work = self.folders("overlay", "at", "upper", "work")
            self.mounted("overlayfs", at, f"mount -t overlay -o lowerdir={lower},upperdir={upper},workdir={work} none {at}")
        if shutil.which("fuse-overlayfs"):
            at, upper, work = self.folders("fuse-overlay", "at", "upper", "work")
            self.mounted("fuse-overlayfs", at, f"fuse-overlayfs -o lowerdir={lower},upperdir={upper},workdir={work} {at}")
        return self.at

    def __exit__(self, *_):
        for command in reversed(self.undo):
            subprocess.run(command, shell=True, env=self.bench.env, capture_output=True)


def clocked(command, at, env):
    start = time.perf_counter()
    run(command, cwd=at, env=env)
    return time.perf_counter() - start


def prepare(bench):
    """A repository of 10,000 files, a tar of them, a project that depends on real crates, and 1 GiB that does not compress."""
    made = bench.work / "material"
    made.mkdir()
    run(f"{bench.tools} gen repo {FILES} && cd repo && git init -q && git config gc.auto 0 && git config maintenance.auto false && git add -A && git -c user.name=b -c user.email=b commit -qm x && "
        "git -c gc.autoDetach=false gc -q && tar --exclude .git -cf ../files.tar .", cwd=made, env=bench.env)
    project = made / "project"
    (project / "src").mkdir(parents=True)
    (project / "Cargo.toml").write_text('[package]\nname = "p"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nregex = "1"\nserde_json = "1"\n[workspace]\n')
    (project / "src/main.rs").write_text("fn main() { println!(\"{}\", regex::Regex::new(\"a+\").unwrap().is_match(\"aa\")); }\n")
    # The user's own registry: what is measured does not wait for the network.
    bench.cargo = dict(bench.env, HOME=os.environ["HOME"], CARGO_TERM_PROGRESS_WHEN="never")
    run("cargo fetch -q", cwd=project, env=bench.cargo)
    run("head -c 1G /dev/urandom > large", cwd=made)
    return made


def work(bench, name, at, made, found, with_build):
    """Each thing once, in one place; seconds into `found`."""
    def took(what, seconds):
        found.setdefault(what, {}).setdefault(name, []).append(seconds)

    env, folder = bench.env, at / "round"
    folder.mkdir()
    run("sync")
    took("git clone", clocked(f"git clone -q --no-hardlinks {made}/repo clone", folder, env))
    run("sync")
    again = lambda command, count: statistics.median([clocked(command, folder / "clone", env) for _ in range(count + 2)][2:])
    took("git status, warm", again("git status --porcelain", 5))
    took("rg, warm", again("rg --no-ignore -c snapshot_ab . | tail -n 1", 5))
    took("untar", clocked(f"mkdir files && tar -C files -xf {made}/files.tar", folder, env))
    run("sync")
    took("rm -rf", clocked("rm -rf files", folder, env))
    one = folder / "clone/d00/s00/f00.txt"
    for what, call in [("open, read and close, warm", "open"), ("stat, cached", "stat")]:
        took(what, int(run(f"{bench.tools} calls {call} {one} 20000")) / 1e9)
    if with_build:
        run(f"cp -r {made}/project .", cwd=folder)
        run("sync")
        took("cargo build", clocked("cargo build -q --offline", folder / "project", bench.cargo))
    run(f"cat {made}/large > /dev/null; sync")
    took("write 1 GiB and fsync", clocked(f"dd if={made}/large of=large bs=1M conv=fsync status=none", folder, env))
    took("read 1 GiB, warm", statistics.median(clocked("dd if=large of=/dev/null bs=1M status=none", folder, env) for _ in range(3)))
    if os.geteuid() == 0:
        run("sync; echo 3 > /proc/sys/vm/drop_caches")
        took("read 1 GiB, cold", clocked("dd if=large of=/dev/null bs=1M status=none", folder, env))
    run("rm -rf round; sync", cwd=at)


def passed_through(bench, made, found):
    """A file of 1 GiB below, by itself and in a branch that has it passed through, in turn."""
    lower, at = bench.work / "through", bench.work / "through-at"
    lower.mkdir()
    run(f"cp {made}/large {lower}; {bench.ah} agent fs branch --provider agentfs --mode cow-overlay --name t --at {at}", env=bench.env, cwd=lower)
    try:
        home = run(f"findmnt -no SOURCE {at}").removeprefix("agentfs:").split("#")[0]
        done = subprocess.run([pathlib.Path(bench.ah).parent / "ah-agentfsd", "--passthrough", home], capture_output=True, text=True)
        if done.returncode:
            print(f"nothing is passed through here: {done.stderr.strip()}", flush=True)
            return
        service = lambda: int(run(f"pgrep -f '[a]h-agentfsd --serve {home}'"))
        os.kill(service(), signal.SIGTERM)
        run(f"for n in $(seq 200); do grep -q ' {at} ' /proc/mounts || break; sleep 0.1; done; {bench.ah} agent fs branches", env=bench.env, cwd=lower)
        # Once all is kept for it that is to be: then it is read while the service does nothing.
        for _ in range(600):
            with open(at / "large", "rb") as file:
                # What the kernel has of it is not what it was answered before.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.kill(service(), signal.SIGSTOP)
                reads = subprocess.Popen(["dd", "of=/dev/null", "bs=1M", "count=64", "status=none"], stdin=file)
                time.sleep(0.5)
                is_through = reads.poll() == 0
                os.kill(service(), signal.SIGCONT)
                reads.wait()
            if is_through:
                break
        else:
            raise SystemExit("error: it is not passed through")
        for _ in range(rounds(bench)):
            for name, folder in [(DISK, lower), (OURS, at)]:
                read = lambda: clocked("dd if=large of=/dev/null bs=1M status=none", folder, bench.env)
                run("sync; echo 3 > /proc/sys/vm/drop_caches")
                found.setdefault("read 1 GiB, passed through, cold", {}).setdefault(name, []).append(read())
                found.setdefault("read 1 GiB, passed through, warm", {}).setdefault(name, []).append(statistics.median(read() for _ in range(3)))
    finally:
        run(f"{bench.ah} agent fs rm --force t; rm -rf {lower}", env=bench.env, cwd=lower)


def table(bench, found):
    for what, places in found.items():
        times = {name: statistics.median(seconds) for name, seconds in places.items()}
        unit, scale = ("µs", 1e6) if times[DISK] < 1e-4 else ("ms", 1e3)
        ratio, bar = times[OURS] / times[DISK], BARS.get(what)
        if what.startswith("open"):
            met, limit = times[OURS] <= 8e-6, "≤ 8 µs"
        else:
            met, limit = (None, "") if bar is None else (ratio <= bar, f"≤ {bar:.2f}")
        beside = ", ".join(f"{name}: {seconds * scale:.1f} {unit}" for name, seconds in times.items() if name != OURS)
        bench.rows.append((f"AgentFS: {what}", f"{times[OURS] * scale:.1f} {unit}", beside, f"{ratio:.2f}", limit,
                           {None: "", True: "met", False: "**missed**"}[met]))
        print(" | ".join(bench.rows[-1]), flush=True)


def calls(bench):
    """What a caller waits for, at two sizes of the directory and two depths of history."""
    small, large, depth = 1000, bench.options.files * 10, bench.options.snapshots
    for files in (small, large):
        at = bench.work / f"calls-{files}"
        at.mkdir()
        try:
            lines = run(f"{bench.tools} agentfs {at} {files} {depth}").splitlines()
        finally:
            run(f"pkill -TERM -f '[a]h-agentfsd --serve {at}/' || true; for n in $(seq 100); do grep -q ' {at}/' /proc/mounts || break; sleep 0.1; done")
        micros = {name: float(value) for name, value in (line.split() for line in lines)}
        for name, what, bar in [("snapshot-1", "snapshot, instant", 100), (f"snapshot-{depth}", f"snapshot, instant, {depth:,} deep", 100),
                                ("branch", "branch, mounted", 100), ("branch-rested", "branch, mounted, 0.1 s behind the one before", 100), ("first-write", "first 4 KiB into 1 GiB after a snapshot", 20_000)]:
            bench.bound(f"AgentFS, {files:,} files: {what}", micros[name], "µs", bar)
        bench.bound(f"AgentFS, {files:,} files: snapshot, durable, above an fsync of the disk ({micros['fsync']:.0f} µs)", micros["durable"] - micros["fsync"], "µs", 100)
        run(f"rm -rf {at}")


def memory(bench, at):
    """What the service grows by when all files are looked at."""
    service = run(f"pgrep -f '[a]h-agentfsd --serve {bench.work}/'")
    resident = lambda: int(pathlib.Path(f"/proc/{service}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    before = resident()
    run(f"find {at}/many -type f -printf '%s\\n' | wc -l")
    bench.bound(f"AgentFS: memory, each of {bench.options.files:,} files looked at", (resident() - before) / bench.options.files, "bytes", 200)


def measure(bench):
    made, lower = prepare(bench), bench.work / "lower"
    lower.mkdir()
    run(f"{bench.tools} gen {lower}/many {bench.options.files}")
    found = {}
    with Places(bench, lower) as places:
        for number in range(rounds(bench)):
            for name, at in places.items():
                work(bench, name, at, made, found, number < 2)
        if os.geteuid() == 0:
            passed_through(bench, made, found)
        table(bench, found)
        memory(bench, places[OURS])
    calls(bench)
