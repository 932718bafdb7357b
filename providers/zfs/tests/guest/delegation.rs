//! An ordinary user, with and without `zfs allow`. The user's part runs in this same program, started anew as that user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ah_plugin_api::{Capability, Context, Dir, ErrorKind, ProbeRequest, Provider};
use ah_provider_zfs::ZfsProvider;

use crate::bench::{Bench, Pool, run};

const USER: &str = "1000";
const FOLDER: &str = "AH_TEST_ZFS_FOLDER";

/// Runs the test `name` as that user on what is in `folder`.
fn as_user(name: &str, folder: &Path) {
    let program = std::env::current_exe().unwrap();
    // The guest keeps programs where only root may look.
    let copy = folder.join("program");
    std::fs::copy(program, &copy).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    let out = Command::new("setpriv")
        .args(["--reuid", USER, "--regid", USER, "--clear-groups"])
        .arg(copy)
        .args(["--ignored", "--exact", name, "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let passed = out.status.success() && text.contains("test result: ok. 1 passed");
    assert!(passed, "{name}: {}\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
}

fn folder() -> std::path::PathBuf {
    std::env::var_os(FOLDER).expect("`an_ordinary_user` runs this").into()
}

fn bench(folder: &Path) -> Bench {
    let open = |name: &str| Dir::open(folder.join(name)).unwrap();
    Bench { provider: ZfsProvider::new(), store: open("store"), workspace: open("ws"), target: open("target") }
}

fn probe(bench: &Bench) -> ah_plugin_api::Probe {
    bench.provider.probe(&bench.place(), &ProbeRequest::default(), &Context::quiet()).unwrap()
}

#[test]
#[ignore = "the user's part of `an_ordinary_user`"]
fn without_permission() {
    let bench = bench(&folder());
    let no = probe(&bench);
    assert!(!no.usable && no.remedy.unwrap().contains("zfs allow -u 1000 snapshot,userprop,destroy,mount"));
    assert_eq!(bench.try_take("a").unwrap_err().kind, ErrorKind::PermissionDenied);
    assert_eq!(bench.ids(), "");
}

#[test]
#[ignore = "the user's part of `an_ordinary_user`"]
fn with_permission_to_take_only() {
    let bench = bench(&folder());
    let half = probe(&bench);
    assert!(half.usable && !half.can_delete, "{half:?}");
    let a = bench.take("kept");
    assert_eq!(bench.destroy(&a).unwrap_err().kind, ErrorKind::PermissionDenied);
    assert_eq!(bench.ids(), "kept");
}

#[test]
#[ignore = "the user's part of `an_ordinary_user`"]
fn with_permission() {
    let bench = bench(&folder());
    let yes = probe(&bench);
    assert!(yes.usable && yes.can_delete, "{yes:?}");
    bench.write("file", "one");
    let a = bench.take("a");
    bench.write("file", "two");
    assert_eq!(bench.seen(&a, "file"), "one");
    // Seen a moment ago, so mounted by the kernel: removing it takes that away too.
    assert!(!bench.provider.describe().capabilities.contains(&Capability::Clone));
    assert_eq!(bench.clone(&a, "fork").unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
    bench.destroy(&a).unwrap();
    assert_eq!(bench.ids(), "kept");
}

#[test]
#[ignore = "the user's part of `an_ordinary_user`"]
fn with_permission_up_to_a_limit() {
    let bench = bench(&folder());
    let error = bench.try_take("a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}");
    assert!(error.hint.unwrap().contains("snapshot_limit"));
    assert_eq!(bench.ids(), "kept");
}

#[test]
#[ignore = "the user's part of `an_ordinary_user`"]
fn with_permission_that_does_not_count() {
    let bench = bench(&folder());
    let no = probe(&bench);
    assert!(!no.usable && !no.can_delete && no.remedy.unwrap().contains("zpool set delegation=on ahtest"));
    let error = bench.try_take("a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.hint.unwrap().contains("zpool set delegation=on"));
    assert_eq!(bench.ids(), "kept");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn an_ordinary_user() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let folder = pool.temp.path();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(pool.path("w/ws")).unwrap();
    std::os::unix::fs::symlink(pool.path("w/ws"), folder.join("link")).unwrap();
    for name in ["store", "target"] {
        std::fs::create_dir(folder.join(name)).unwrap();
        run("chown", &[USER, folder.join(name).to_str().unwrap()]);
    }
    run("chown", &[USER, pool.path("w/ws").to_str().unwrap()]);
    // The last component may not be a symlink, so the directory itself is bound there.
    let at = folder.join("ws");
    std::fs::create_dir(&at).unwrap();
    run("mount", &["--bind", pool.path("w/ws").to_str().unwrap(), at.to_str().unwrap()]);
    as_user("delegation::without_permission", folder);
    run("zfs", &["allow", "-u", USER, "snapshot,userprop", &pool.full("w")]);
    as_user("delegation::with_permission_to_take_only", folder);
    run("zfs", &["allow", "-u", USER, "destroy,mount", &pool.full("w")]);
    as_user("delegation::with_permission", folder);
    // Which does not bind root.
    run("zfs", &["set", "snapshot_limit=1", &pool.full("w")]);
    as_user("delegation::with_permission_up_to_a_limit", folder);
    run("zfs", &["set", "snapshot_limit=none", &pool.full("w")]);
    run("zpool", &["set", "delegation=off", &pool.name]);
    as_user("delegation::with_permission_that_does_not_count", folder);
    run("umount", &[at.to_str().unwrap()]);
}
