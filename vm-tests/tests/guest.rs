//! The runner itself, on the real guest: what comes out of it, and what becomes of one that panics, hangs, or loses its power.
//!
//! Needs QEMU and the guest that `scripts/vm-guest` makes. The suites that run inside are started by `scripts/vm-test`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ah_vm_tests::disk::Disk;
use ah_vm_tests::machine::{Accelerator, Backing, Event, Machine, Setup, run};
use ah_vm_tests::payload::Guest;
use ah_vm_tests::random::Random;

/// A machine to start, or nothing, said with its reason, where that cannot be.
fn setup(command: &str) -> Option<Setup> {
    let made = || -> Result<Setup, String> {
        let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
        qemu.map_err(|error| format!("qemu-system-x86_64 cannot be run ({error}); scripts/setup vm installs it"))?;
        let target = target();
        let guest = Guest::find(&target, "2.1").map_err(|error| error.to_string())?;
        let accelerator = Accelerator::find(&guest, &target).map_err(|error| format!("{error:#}"))?;
        let mut setup = Setup::new(guest, accelerator);
        command.clone_into(&mut setup.payload.command);
        Ok(setup)
    };
    match made() {
        Ok(setup) => Some(setup),
        Err(reason) => {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: {reason}");
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// The target folder; test programs lie in `target/PROFILE/deps`.
fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).map(Path::to_owned).unwrap()
}

const SILENCE: Duration = Duration::from_secs(120);

#[test]
fn output_and_exit_status_come_back() {
    let Some(setup) = setup("echo to stdout; echo to stderr >&2; id -u; exit 7") else { return };
    let mut out = Vec::new();
    let outcome = run(&setup, SILENCE, &mut |bytes| out.extend_from_slice(bytes)).unwrap();
    assert_eq!(outcome.status, 7);
    assert_eq!(String::from_utf8(out).unwrap(), "to stdout\nto stderr\n0\n");
    assert!(outcome.boot > Duration::ZERO && outcome.boot < outcome.whole);
}

#[test]
fn a_panic_fails_the_run_with_the_kernels_words() {
    let Some(setup) = setup("echo before; echo c >/proc/sysrq-trigger; sleep 1000") else { return };
    let mut out = Vec::new();
    let error = run(&setup, SILENCE, &mut |bytes| out.extend_from_slice(bytes)).unwrap_err();
    assert_eq!(String::from_utf8(out).unwrap(), "before\n", "what was printed until then is seen");
    let text = format!("{error:#}");
    assert!(text.contains("went away") && text.contains("Kernel panic"), "{text}");
}

#[test]
fn a_task_that_is_stuck_in_the_kernel_fails_the_run_whatever_else_is_heard() {
    let work = "mkfs.ext4 -q /dev/ah/a; mount /dev/ah/a /mnt; fsfreeze --freeze /mnt
        cat /sys/module/spl/parameters/spl_panic_halt /proc/sys/kernel/hung_task_panic
        cd /proc/sys/kernel; echo 1 >hung_task_check_interval_secs; echo 2 >hung_task_timeout_secs
        touch /mnt/file & for second in {1..60}; do echo goes on; sleep 1; done";
    let Some(mut setup) = setup(work) else { return };
    setup.payload.modules = ["ext4", "spl"].map(str::to_owned).into();
    setup.disks = vec![("a".to_owned(), Backing::New(64 << 20))];
    let mut out = Vec::new();
    let error = run(&setup, SILENCE, &mut |bytes| out.extend_from_slice(bytes)).unwrap_err();
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("1\n1\n"), "ZFS's panics are the kernel's, too: {out}");
    let text = format!("{error:#}");
    assert!(text.contains("went away") && text.contains("blocked for more than"), "{text}");
}

#[test]
fn silence_fails_the_run() {
    let Some(setup) = setup("echo started; sleep 1000") else { return };
    let machine = Machine::start(&setup).unwrap();
    // Up, first: how long that takes is the machine's affair.
    while !matches!(machine.next(SILENCE).unwrap(), Event::Out(_)) {}
    let error = loop {
        if let Err(error) = machine.next(Duration::from_secs(2)) {
            break error;
        }
    };
    assert!(error.to_string().contains("silent"), "{error}");
}

#[test]
fn a_cut_keeps_what_was_flushed() {
    let work = "printf flushed | dd of=/dev/ah/a bs=4096 seek=1 conv=sync,fsync 2>/dev/null;
        printf other | dd of=/dev/ah/a bs=4096 seek=1000 conv=sync,fsync 2>/dev/null; echo done; sleep 1000";
    let Some(mut setup) = setup(work) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut disk = Disk::new(&folder.path().join("disk"), 64 << 20).unwrap();
    let serve = |disk: &mut Disk, setup: &mut Setup, name: &str| {
        let socket = folder.path().join(name);
        disk.serve(&socket).unwrap();
        setup.disks = vec![("a".to_owned(), Backing::Nbd(socket))];
    };
    serve(&mut disk, &mut setup, "first");
    let mut machine = Machine::start(&setup).unwrap();
    while !matches!(machine.next(SILENCE).unwrap(), Event::Out(bytes) if bytes.starts_with(b"done")) {}
    machine.cut();
    disk.cut(&mut Random::new(1));
    "dd if=/dev/ah/a bs=4096 skip=1 count=1 2>/dev/null | tr -d '\\0'; dd if=/dev/ah/a bs=4096 skip=1000 count=1 2>/dev/null | tr -d '\\0'"
        .clone_into(&mut setup.payload.command);
    serve(&mut disk, &mut setup, "second");
    let mut out = Vec::new();
    run(&setup, SILENCE, &mut |bytes| out.extend_from_slice(bytes)).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "flushedother");
}
