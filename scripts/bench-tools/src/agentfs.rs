//! What AgentFS answers a caller in, with its service running: snapshots and branches, and the first write to a large file after a snapshot.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, DestroyRequest, Dir, Durability, FileName, Place, Provider, Quiet, Reference,
    SnapshotId, SnapshotRequest, Timestamp, WritableClone,
};
use ah_provider_agentfs::AgentFsProvider;
use anyhow::{Context as _, Result};

use crate::generate;

/// How many of each are measured.
const RUNS: usize = 100;
/// So long nothing is asked for before a branch, where what the service prepares for the next one is to be there.
const REST: Duration = Duration::from_millis(100);

/// Makes a directory of `files` files in `dir`, a branch of it, and `depth` snapshots; prints one line of `name microseconds` for each measurement.
pub(crate) fn run(dir: &Path, files: usize, depth: usize) -> Result<()> {
    let lower = dir.join("lower");
    generate(&lower, files)?;
    fs::File::create(lower.join("large"))?.set_len(0)?;
    fill(&lower.join("large"))?;
    for store in ["store", "branch-store"] {
        fs::create_dir(dir.join(store))?;
    }
    let bench = Bench { provider: AgentFsProvider::new(), dir: dir.to_owned() };
    let origin = bench.snapshot(&lower, "store", "origin", Durability::Instant)?.0;
    let branch = bench.branch("store", &origin, "branch")?.0.path;

    println!("snapshot-1 {}", micros(bench.snapshots(&branch, "few", RUNS, Durability::Instant)?));
    // In turn: what the disk takes changes with what others ask of it.
    let plain = fs::File::create(dir.join("plain"))?;
    let (mut durable, mut fsync) = (Vec::new(), Vec::new());
    for n in 0..RUNS {
        durable.extend(bench.snapshots(&branch, &format!("durable{n}-"), 1, Durability::Durable)?);
        fsync.push(disk(&plain, n as u64)?);
    }
    println!("durable {}", micros(durable));
    println!("fsync {}", micros(fsync));
    bench.snapshots(&branch, "deep", depth, Durability::Instant)?;
    println!("snapshot-{depth} {}", micros(bench.snapshots(&branch, "many", RUNS, Durability::Instant)?));
    for (name, rest) in [("branch", Duration::ZERO), ("branch-rested", REST)] {
        let mut branching = Vec::new();
        for n in 0..RUNS / 5 {
            std::thread::sleep(rest);
            let (clone, took) = bench.branch("store", &origin, &format!("{name}{n}"))?;
            branching.push(took);
            bench.remove(clone)?;
        }
        println!("{name} {}", micros(branching));
    }

    let mut writes = Vec::new();
    for n in 0..20 {
        bench.snapshot(&branch, "branch-store", &format!("large{n}"), Durability::Instant)?;
        let start = Instant::now();
        let file = fs::OpenOptions::new().write(true).open(branch.join("large"))?;
        file.write_all_at(&[7; 4096], 512 << 20)?;
        drop(file);
        writes.push(start.elapsed());
    }
    println!("first-write {}", micros(writes));
    Ok(())
}

struct Bench {
    provider: AgentFsProvider,
    dir: PathBuf,
}

impl Bench {
    fn snapshot(
        &self,
        workspace: &Path,
        store: &str,
        id: &str,
        durability: Durability,
    ) -> Result<(Reference, Duration)> {
        let (workspace, store) = (Dir::open(workspace)?, Dir::open(self.dir.join(store))?);
        let place = Place::new(&store).with_workspace(&workspace);
        let request = SnapshotRequest {
            id: SnapshotId::new(id)?,
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability,
            policy: CapturePolicy::default(),
        };
        let start = Instant::now();
        let snapshot = self.provider.snapshot(&place, &request, &Context::new(&Quiet))?;
        Ok((snapshot.reference, start.elapsed()))
    }

    /// Each after a small write.
    fn snapshots(&self, branch: &Path, name: &str, count: usize, durability: Durability) -> Result<Vec<Duration>> {
        let mut took = Vec::with_capacity(count);
        for n in 0..count {
            fs::write(branch.join("small"), format!("{name} {n}"))?;
            took.push(self.snapshot(branch, "branch-store", &format!("{name}{n}"), durability)?.1);
        }
        Ok(took)
    }

    fn branch(&self, store: &str, snapshot: &Reference, name: &str) -> Result<(WritableClone, Duration)> {
        let (store, target) = (Dir::open(self.dir.join(store))?, Dir::open(&self.dir)?);
        let place = Place::new(&store).with_target(&target);
        let request = CloneRequest { snapshot: snapshot.clone(), name: FileName::new(name)? };
        let start = Instant::now();
        let clone = self.provider.clone_snapshot(&place, &request, &Context::new(&Quiet))?;
        Ok((clone, start.elapsed()))
    }

    fn remove(&self, clone: WritableClone) -> Result<()> {
        let store = Dir::open(self.dir.join("store"))?;
        let request = DestroyRequest::Clone(clone.reference);
        self.provider.destroy(&Place::new(&store), &request, &Context::new(&Quiet))?;
        Ok(())
    }
}

/// 1 GiB that is no hole.
fn fill(at: &Path) -> Result<()> {
    let file = fs::File::create(at)?;
    let block: Vec<u8> = (0..1_u32 << 20).map(|n| n.to_le_bytes()[0]).collect();
    for n in 0..1024 {
        file.write_all_at(&block, n << 20)?;
    }
    file.sync_all()?;
    Ok(())
}

/// `fsync` of 100 bytes on the disk itself.
fn disk(file: &fs::File, n: u64) -> Result<Duration> {
    file.write_all_at(&[1; 100], n * 100)?;
    let start = Instant::now();
    file.sync_all()?;
    Ok(start.elapsed())
}

/// Opens, reads and closes the file, or asks for its attributes, so many times; prints the nanoseconds of one.
pub(crate) fn calls(what: &str, file: &Path, count: u32) -> Result<()> {
    let mut buffer = [0; 4096];
    let mut once = || -> Result<u64> {
        Ok(match what {
            "stat" => fs::metadata(file)?.len(),
            _ => fs::File::open(file)?.read(&mut buffer)? as u64,
        })
    };
    once().with_context(|| file.display().to_string())?;
    let start = Instant::now();
    for _ in 0..count {
        once()?;
    }
    println!("{}", start.elapsed().as_nanos() / u128::from(count));
    Ok(())
}

/// The median.
fn micros(mut took: Vec<Duration>) -> f64 {
    took.sort();
    took[took.len() / 2].as_secs_f64() * 1e6
}
