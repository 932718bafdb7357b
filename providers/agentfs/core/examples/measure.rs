//! Measures the core by itself, without a host: `cargo run --release -p ah-agentfs --example measure -- DIRECTORY [FILES]`.
//!
//! The directory must be on the disk that is meant. Figures are for docs/agentfs.md.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ah_agentfs::{BranchId, Class, Options, Owner, ROOT, Result, View, Workspace};

const ME: Owner = Owner { mode: 0o644, uid: 0, gid: 0 };

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: measure DIRECTORY [FILES]");
        return;
    };
    let files = arguments.next().and_then(|count| count.to_str()?.parse().ok()).unwrap_or(1_000_000);
    let directory = Path::new(&directory);
    if let Err(error) = run(directory, files).and_then(|()| below(&directory.join("below"))) {
        eprintln!("{error}: {:?}", std::error::Error::source(&error));
    }
}

fn each(what: &str, begun: Instant, count: u64) {
    println!("{what:58} {:9.2} µs each", begun.elapsed().as_secs_f64() * 1e6 / count as f64);
}

fn spread(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    println!("{what:58} median {:9.1} µs, 99 % {:9.1} µs", at(50), at(99));
}

/// Snapshots with one small change before each.
fn snapshots(what: &str, workspace: &Workspace, branch: BranchId, view: &View, count: u64, class: Class) -> Result<()> {
    let ino = view.lookup(ROOT, b"changed")?.ino;
    let mut times = Vec::new();
    for nth in 0..count {
        view.write(ino, nth % 10 * 4096, &[nth as u8; 100])?;
        let begun = Instant::now();
        workspace.snapshot(branch, b"", class)?;
        times.push(begun.elapsed());
    }
    spread(what, times);
    Ok(())
}

/// How long single writes take while snapshots are taken, beside the same without snapshots.
fn stalls(workspace: &Workspace, branch: BranchId, view: &View) -> Result<()> {
    let ino = view.create(ROOT, b"stalls", ME)?.ino;
    for (what, pause) in [("write of 4 KiB, nothing else going on", None), ("  a snapshot every millisecond", Some(1))]
    {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut times = Vec::new();
        let mut taken = 0;
        std::thread::scope(|scope| -> Result<()> {
            let snapshots = scope.spawn(|| -> Result<u64> {
                let mut taken = 0;
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(pause.unwrap_or(10)));
                    if pause.is_some() {
                        workspace.snapshot(branch, b"", Class::Instant)?;
                        taken += 1;
                    }
                }
                Ok(taken)
            });
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(3) {
                let one = Instant::now();
                view.write(ino, times.len() as u64 % 1000 * 4096, &[1; 4096])?;
                times.push(one.elapsed());
            }
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            taken = snapshots.join().unwrap_or(Ok(0))?;
            Ok(())
        })?;
        let over = times.iter().filter(|time| **time > Duration::from_millis(5)).count();
        let most = times.iter().max().map_or(0.0, |time| time.as_secs_f64() * 1e3);
        println!("{} writes, {taken} snapshots: over 5 ms {over}, the slowest {most:.1} ms", times.len());
        spread(what, times);
    }
    Ok(())
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// What is done behind a base and behind who takes a file over: 100,000 files of 8 KiB in 1,000 directories, and one of 60 MiB.
fn below(directory: &Path) -> Result<()> {
    let (lower, store) = (directory.join("lower"), directory.join("store"));
    let prepare = || -> std::io::Result<()> {
        for nth in 0..100_000_u64 {
            let parent = lower.join(format!("directory{}", nth / 100));
            std::fs::create_dir_all(&parent)?;
            std::fs::write(parent.join(format!("file{nth}.txt")), nth.to_le_bytes().repeat(1024))?;
        }
        std::fs::write(lower.join("large"), vec![7; 60 << 20])?;
        // As it is when nobody has just written it.
        rustix::fs::syncfs(std::fs::File::open(&lower)?).map_err(std::io::Error::from)
    };
    if let Err(error) = prepare() {
        eprintln!("{error}");
        return Ok(());
    }
    Workspace::create(&store, &lower)?;
    let workspace = Workspace::open(&store, &lower, Options { background: false, ..Options::default() })?;
    let size = || std::fs::metadata(store.join("rows.redb")).map_or(0, |rows| rows.len() / 1024);
    let mut last = None;
    for what in ["first base", "second base, nothing changed"] {
        let begun = Instant::now();
        let base = workspace.base_with_names(b"")?;
        println!("{what}: names {:.2} s", begun.elapsed().as_secs_f64());
        workspace.checkpoint()?;
        let (before, begun) = (size(), Instant::now());
        workspace.take_fingerprints(base)?;
        println!("  fingerprints {:.2} s", begun.elapsed().as_secs_f64());
        workspace.checkpoint()?;
        println!("  the rows' file: {before} KiB with the names, {} KiB with both", size());
        last = Some(base);
    }
    let Some(base) = last else { return Ok(()) };
    let view = workspace.view(workspace.branch(base, b"")?)?;
    let large = view.lookup(ROOT, b"large")?.ino;
    let begun = Instant::now();
    view.write(large, 4096, b"ours")?;
    each("first write to a file of 60 MiB below", begun, 1);
    let begun = Instant::now();
    workspace.copy_taken_over()?;
    each("  its copy, behind that", begun, 1);
    let touched = std::fs::File::options().write(true).open(lower.join("large"));
    let touched = touched.and_then(|file| file.set_modified(std::time::SystemTime::now()));
    touched.map_err(|source| ah_agentfs::Error::Io { what: "touching a file", source })?;
    let old = workspace.view_of(base)?;
    for what in ["a look at it in a snapshot, touched below", "  the next"] {
        let begun = Instant::now();
        old.lookup(ROOT, b"large")?;
        each(what, begun, 1);
    }
    Ok(())
}

fn run(directory: &Path, files: u64) -> Result<()> {
    let (lower, store) = (directory.join("lower"), directory.join("store"));
    let prepare = || -> std::io::Result<()> {
        std::fs::create_dir_all(lower.join("many"))?;
        std::fs::File::create(lower.join("large"))?.write_all_at(b"x", (1 << 30) - 1)?;
        (0..20_000).try_for_each(|nth| std::fs::write(lower.join(format!("many/{nth}")), "lower"))
    };
    if let Err(error) = prepare() {
        eprintln!("{error}");
        return Ok(());
    }
    Workspace::create(&store, &lower)?;
    let workspace = Workspace::open(&store, &lower, Options::default())?;
    let begun = Instant::now();
    let base = workspace.base_with_names(b"")?;
    each("names below, written down", begun, 20_000);
    let branch = workspace.branch(base, b"")?;
    let view = workspace.view(branch)?;
    view.create(ROOT, b"changed", ME)?;

    let mut made = 0;
    for (count, name) in [(1000, "1,000 files"), (files, "all files")] {
        let begun = Instant::now();
        let first = made;
        while made < count {
            let parent = view.mkdir(ROOT, format!("d{made}").as_bytes(), ME)?.ino;
            for nth in 0..1000.min(count - made) {
                let ino = view.create(parent, format!("file{nth}").as_bytes(), ME)?.ino;
                view.forget(ino, 1);
            }
            made += 1000;
        }
        each(&format!("create, up to {name}"), begun, (made - first).max(1));
        std::thread::sleep(Duration::from_secs(3));
        snapshots(
            &format!("snapshot, instant, {name}, the first 100"),
            &workspace,
            branch,
            &view,
            100,
            Class::Instant,
        )?;
        snapshots("  the next 1,000", &workspace, branch, &view, 1000, Class::Instant)?;
        snapshots("  with 1,100 there", &workspace, branch, &view, 100, Class::Instant)?;
        snapshots("  durable", &workspace, branch, &view, 100, Class::Durable)?;
        let from = workspace.snapshot(branch, b"", Class::Instant)?;
        let mut times = Vec::new();
        for _ in 0..100 {
            let begun = Instant::now();
            workspace.branch(from, b"")?;
            times.push(begun.elapsed());
        }
        spread("  branch", times);
    }

    stalls(&workspace, branch, &view)?;

    let large = view.lookup(ROOT, b"large")?.ino;
    for what in ["first 4 KiB write to 1 GiB below", "  after a snapshot"] {
        let begun = Instant::now();
        view.write(large, 512 << 20, &[1; 4096])?;
        each(what, begun, 1);
        workspace.snapshot(branch, b"", Class::Instant)?;
    }

    let begun = Instant::now();
    let parent = view.lookup(ROOT, b"d0")?.ino;
    for nth in 0..1000 {
        view.lookup(parent, format!("file{nth}").as_bytes())?;
    }
    each("lookup of a file of our own", begun, 1000);
    let many = view.lookup(ROOT, b"many")?.ino;
    let (begun, before) = (Instant::now(), resident());
    for nth in 0..20_000 {
        view.lookup(many, nth.to_string().as_bytes())?;
    }
    each("lookup of a file below", begun, 20_000);
    println!("memory for each file below that is known: {} bytes", resident().saturating_sub(before) / 20_000);
    let ino = view.lookup(many, b"7")?.ino;
    let begun = Instant::now();
    (0..10_000).try_for_each(|_| view.read(ino, 0, 4096).map(drop))?;
    each("read of a small file below", begun, 10_000);
    let begun = Instant::now();
    (0..20_000).try_for_each(|nth| view.unlink(many, nth.to_string().as_bytes()))?;
    each("unlink of a file below", begun, 20_000);

    let ino = view.create(ROOT, b"stream", ME)?.ino;
    let (data, begun) = (vec![7; 1 << 20], Instant::now());
    (0..1024).try_for_each(|nth| view.write(ino, nth << 20, &data).map(drop))?;
    println!("write 1 GiB by 1 MiB: {:.0} MiB/s", 1024.0 / begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    view.fsync(ino)?;
    println!("  and fsync: {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
    let begun = Instant::now();
    (0..1024).try_for_each(|nth| view.read(ino, nth << 20, 1 << 20).map(drop))?;
    println!("read 1 GiB by 1 MiB, warm: {:.0} MiB/s", 1024.0 / begun.elapsed().as_secs_f64());
    let plain = || -> std::io::Result<(f64, f64)> {
        let file = std::fs::File::options().create_new(true).read(true).write(true).open(directory.join("plain"))?;
        let begun = Instant::now();
        (0..1024).try_for_each(|nth| file.write_all_at(&data, nth << 20))?;
        let (written, begun) = (1024.0 / begun.elapsed().as_secs_f64(), Instant::now());
        let mut buffer = vec![0; 1 << 20];
        (0..1024).try_for_each(|nth| file.read_exact_at(&mut buffer, nth << 20))?;
        Ok((written, 1024.0 / begun.elapsed().as_secs_f64()))
    };
    if let Ok((written, read)) = plain() {
        println!("the disk itself: write {written:.0} MiB/s, read {read:.0} MiB/s");
    }

    println!("rows in memory: {}", workspace.rows_in_memory());
    drop((view, workspace));
    let begun = Instant::now();
    let workspace = Workspace::open(&store, &lower, Options::default())?;
    each("open, as after kill -9", begun, 1);
    let begun = Instant::now();
    for snapshot in workspace.snapshots().into_iter().take(1000) {
        workspace.delete_snapshot(snapshot.id)?;
    }
    workspace.reclaim()?;
    each("delete 1,000 snapshots, space given back", begun, 1000);
    Ok(())
}
