//! What others test filesystems with, on a real mount: pjdfstest, fio, stress-ng, SQLite, git and a compiler. (fsx is in `fsx/`.)
//! `scripts/setup filesystems` installs them; where one is missing its test says so and does nothing, unless `AH_TEST_REQUIRE_ALL` is set.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ah_agentfs::{Class, Options, Workspace};
use ah_agentfs_fuse::Mount;

use common::{Child, Lab, full_or_tenth, is_sound, sh, tool, unmount};

/// Which of pjdfstest's cases fail at a place, and how many pass.
fn pjdfstest(program: &Path, configuration: &Path, at: &Path) -> (BTreeSet<String>, usize) {
    let output = Command::new(program).arg("-c").arg(configuration).arg("-p").arg(at).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = |ending: &str| {
        let name = |line: &str| line.strip_suffix(ending).map(|name| name.trim().to_owned());
        text.lines().filter_map(name).collect::<BTreeSet<_>>()
    };
    let (failed, passed) = (named(" FAILED"), named(" ok").len());
    assert!(text.contains(&format!("Summary: {} failed,", failed.len())), "{text}");
    (failed, passed)
}

#[test]
fn pjdfstest_finds_nothing_that_the_disk_itself_does_not_have() {
    let (Some(lab), Some(program)) = (Lab::new(), tool("pjdfstest")) else { return };
    let (_workspace, mount) = lab.mount("work");
    let [plain, mounted] = [lab.path("plain"), mount.at().join("suite")];
    let configuration = lab.path("pjdfstest.toml");
    fs::write(
        &configuration,
        "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\nrename_ctime = {}\n\
         [settings]\nnaptime = 0.02\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
    )
    .unwrap();
    let [there, here] = [plain, mounted].map(|at| {
        fs::create_dir(&at).unwrap();
        pjdfstest(&program, &configuration, &at)
    });
    let new: Vec<_> = here.0.difference(&there.0).collect();
    assert!(new.is_empty(), "fails only here: {new:?}");
    // One is for disks with few links to a file.
    assert!(here.1 >= 380 && here.1 + 1 >= there.1, "{} pass, on the disk {}", here.1, there.1);
    unmount(mount);
}

#[test]
fn fio_reads_back_what_it_wrote() {
    let (Some(lab), Some(_)) = (Lab::new(), tool("fio")) else { return };
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    let fio = |at: &Path, job: &str| {
        let same =
            "--name=v --nrfiles=4 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --allrandrepeat=1 --minimal";
        sh(at, &format!("fio {same} --size={}m {job} >/dev/null", full_or_tenth(80)));
    };
    // What is written at random places, in blocks of all sizes, by several, is read back by each way.
    for engine in ["psync --bsrange=512-128k", "libaio --iodepth=8 --bsrange=512-128k", "mmap --bsrange=4k-128k"] {
        let job = format!("--ioengine={engine} --rw=randwrite --numjobs=3 --fsync=50 --do_verify=1");
        fio(mount.at(), &job);
    }
    // In a snapshot is what was there, whatever is written over it.
    fio(mount.at(), "--filename=s --rw=write --bs=16k --verify_pattern=0x11 --verify=pattern --do_verify=0");
    let snapshot = workspace.snapshot(branch, b"", Class::Instant).unwrap();
    fio(mount.at(), "--filename=s --rw=randwrite --bs=4k --verify_pattern=0x22 --verify=pattern --do_verify=1");
    let place = lab.place();
    let view = Mount::new(workspace.view_of(snapshot).unwrap(), &place).unwrap();
    fio(&place, "--filename=s --readonly --rw=read --bs=64k --verify_pattern=0x11 --verify=pattern --do_verify=1");
    unmount(view);
    unmount(mount);
    drop(workspace);
    is_sound(&lab.store(), &lab.lower());
}

#[test]
fn stress_ng_breaks_nothing() {
    let (Some(lab), Some(_)) = (Lab::new(), tool("stress-ng")) else { return };
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    fs::create_dir(mount.at().join("stress")).unwrap();
    // One thread of each. Others of its class need what is not here (devices, quotas), or test the kernel alone.
    let stressors = [
        "access",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "dirdeep",
        "fallocate",
        "fpunch",
        "hdd",
        "link",
        "mknod",
        "rename",
        "symlink",
        "sync-file",
        "xattr",
    ];
    let workers: String = stressors.map(|name| format!(" --{name} 1")).concat();
    let small = "--hdd-bytes 4m --fallocate-bytes 4m --sync-file-bytes 4m --dentries 500";
    let seconds = full_or_tenth(120);
    let mut stress = Command::new("bash")
        .args([
            "-ec",
            &format!("exec stress-ng --temp-path stress --verify --oomable{workers} {small} -t {seconds} 2>&1"),
        ])
        .current_dir(mount.at())
        .stdout(File::create(lab.path("said")).unwrap())
        .spawn()
        .unwrap();
    let mut taken = 0;
    let status = loop {
        if let Some(status) = stress.try_wait().unwrap() {
            break status;
        }
        workspace.snapshot(branch, b"", Class::Instant).unwrap();
        taken += 1;
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(status.success(), "{status}: {}", fs::read_to_string(lab.path("said")).unwrap());
    assert!(taken > 10);
    // Each snapshot can be read from end to end.
    for snapshot in workspace.snapshots().iter().rev().take(3) {
        let place = lab.place();
        let view = Mount::new(workspace.view_of(snapshot.id).unwrap(), &place).unwrap();
        sh(&place, "find . -type f -print0 | xargs -0 -r cat | wc -c; find . -ls >/dev/null");
        unmount(view);
    }
    sh(mount.at(), "rm -rf stress; ls");
    unmount(mount);
    drop(workspace);
    is_sound(&lab.store(), &lab.lower());
}

/// Commits rows one by one, and says of each when it is committed.
const SQLITE: &str = "
import os, sqlite3, sys
folder = os.open('.', os.O_RDONLY)
db = sqlite3.connect('db', isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[1])
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, text)')
n = db.execute('select coalesce(max(n), 0) from t').fetchone()[0]
while True:
    n += 1
    db.execute('begin')
    db.execute('insert into t values (?, ?)', (n, 'x' * (n % 3000)))
    db.execute('update t set text = text || ? where n = ?', (n, n // 2))
    db.execute('commit')
    # What commits is a rollback journal's removal, which SQLite does not sync (with synchronous=extra it does, but takes a folder that
    # cannot be opened for a success).
    os.fsync(folder)
    print(n, flush=True)
";

#[test]
fn sqlite_keeps_what_it_committed_when_the_host_is_killed() {
    let (Some(lab), Some(_)) = (Lab::new(), tool("python3")) else { return };
    for mode in ["wal", "delete"] {
        let place = lab.place();
        let mut host = Child::start(&lab, &place);
        for _ in 0..full_or_tenth(30) {
            let mut writer = Command::new("python3")
                .args(["-c", SQLITE, mode])
                .current_dir(&place)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().expect("a commit");
            let committed = std::thread::spawn(move || lines.last().unwrap_or(first));
            std::thread::sleep(Duration::from_millis(700));
            host.kill();
            writer.wait().unwrap();
            let committed: u64 = committed.join().unwrap().parse().unwrap();
            rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
            is_sound(&lab.store(), &lab.lower());
            host = Child::start(&lab, &place);
            let check = "import sqlite3; db = sqlite3.connect('db'); print(*db.execute('pragma integrity_check').fetchone(), *db.execute('select count(*), max(n) from t').fetchone())";
            let said = sh(&place, &format!("python3 -c \"{check}\""));
            let found: Vec<_> = said.split_whitespace().collect();
            assert_eq!((found[0], found[1]), ("ok", found[2]), "{mode}");
            assert!(
                found[1].parse::<u64>().unwrap() >= committed,
                "{mode}: {committed} were committed, there are {}",
                found[1]
            );
        }
        sh(&place, "rm db*");
        host.kill();
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_repository_is_sound_after_building_and_committing_at_once() {
    let (Some(lab), Some(_)) = (Lab::new(), tool("cc")) else { return };
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    let rounds = full_or_tenth(40);
    sh(
        mount.at(),
        "mkdir p && cd p && git init -q && git config user.name a && git config user.email a@b && git config gc.auto 0
         for n in $(seq 40); do echo \"int f$n(void) { return $n; }\" > f$n.c; done
         { for n in $(seq 40); do echo \"int f$n(void);\"; done; echo 'int main(void) { return 0'; for n in $(seq 40); do echo \" + f$n()\"; done; echo '!= 820; }'; } > main.c
         printf 'all: prog\nprog: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n' > Makefile
         printf '*.o\nprog\n' > .gitignore; git add -A; git commit -qm begin",
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let build = "make -s -j4 CFLAGS=-O0 && ./prog && find . -name 'f*.o' | head -n 10 | xargs rm -f prog";
            sh(&mount.at().join("p"), &format!("for n in $(seq {rounds}); do {build}; done; make -s; ./prog"));
        });
        scope.spawn(|| {
            let change =
                "echo \"/* $n */\" >> f$((n % 40 + 1)).c; echo $n > note$n; git add -A; git commit -qm $n; git gc -q";
            sh(&mount.at().join("p"), &format!("for n in $(seq {}); do {change}; done", rounds * 3));
        });
        for _ in 0..5 {
            workspace.snapshot(branch, b"", Class::Instant).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let said = sh(
        &mount.at().join("p"),
        "git fsck --strict 2>&1; git log --format=%s | wc -l; git status --porcelain; make -s; ./prog",
    );
    assert_eq!(said, format!("{}\n", rounds * 3 + 1));
    // The same bytes on the disk itself are a sound repository, too.
    sh(
        &lab.path(""),
        &format!(
            "cp -a {}/p copy && cd copy && git fsck --strict && git status --porcelain && touch f*.c && make -s && ./prog",
            mount.at().display()
        ),
    );
    unmount(mount);
    drop(workspace);
    is_sound(&lab.store(), &lab.lower());
}

#[test]
fn on_a_full_disk_writers_are_told_and_nothing_else_happens() {
    let Some(lab) = Lab::new() else { return };
    // Unmounted with the lab.
    let disk = lab.place();
    sh(&disk, "mount -t tmpfs -o size=48m none .");
    let store = disk.join("store");
    Workspace::create(&store, &lab.lower()).unwrap();
    let workspace = Workspace::open(&store, &lab.lower(), Options::default()).unwrap();
    let branch = workspace.branch(workspace.base(b"").unwrap(), b"work").unwrap();
    let mount = Mount::new(workspace.view(branch).unwrap(), &lab.place()).unwrap();
    sh(mount.at(), "for n in $(seq 50); do yes kept$n | head -c 50000 > kept$n; done; sync .");
    let snapshot = workspace.snapshot(branch, b"kept", Class::Durable).unwrap();
    let kept = "for n in $(seq 50); do yes kept$n | head -c 50000 | cmp - kept$n; done";
    for round in 0..3 {
        let writers = "for w in 1 2 3 4; do (n=0; while yes $w | head -c 300000 > w$w.$n 2>>errors$w; do n=$((n+1)); [ $n -lt 1000 ]; done) & done; wait";
        sh(mount.at(), &format!("exec 2>/dev/null; {writers}"));
        let full = fs::write(mount.at().join("more"), vec![1; 30 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "round {round}");
        sh(mount.at(), kept);
        assert_eq!(fs::read_to_string(mount.at().join("l")).unwrap(), "lower\n");
        // A snapshot is no matter of space; and what is deleted gives room.
        let full = workspace.snapshot(branch, b"full", Class::Instant).unwrap();
        sh(mount.at(), "rm -f w* errors* more");
        workspace.delete_snapshot(full).unwrap();
        let began = Instant::now();
        let room = || fs::write(mount.at().join("room"), vec![1; 10 << 20]).is_ok();
        while !room() {
            assert!(began.elapsed() < Duration::from_secs(60), "the space does not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
        fs::remove_file(mount.at().join("room")).unwrap();
    }
    let place = lab.place();
    let view = Mount::new(workspace.view_of(snapshot).unwrap(), &place).unwrap();
    sh(&place, kept);
    unmount(view);
    unmount(mount);
    drop(workspace);
    is_sound(&store, &lab.lower());
}
