//! Real plugins, good and bad, from files.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ah_host::{EXIT_UNAVAILABLE, Fault, Host, Options, Outcome, Search, load, load_file, look};
use ah_plugin_api::abi::OpenError;
use ah_plugin_api::{
    Context, ConvertRequest, Dir, Durability, Error, ErrorKind, ListRequest, LogLevel, Observer, Place, ProbeRequest,
    Progress, ProviderName, ReadRequest, ReclaimRequest, RelPath, SnapshotId, SnapshotRequest, Timestamp,
};
use ah_test_plugins::{folder, library};

/// The tests run one after the other: a file is tried in a copy of this process, in which a lock that another thread held
/// at that moment (to print a backtrace, say) would never be given back.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(explicit: &[&Path]) -> Options {
    let explicit = explicit.iter().map(|path| (*path).to_owned()).collect();
    Options { search: Search { explicit, ..Search::default() }, state: None, limit: None }
}

fn name(name: &str) -> ProviderName {
    ProviderName::new(name).unwrap()
}

/// The code of each file's outcome, by file name.
fn outcomes(host: &Host) -> Vec<(String, &'static str)> {
    let code = |outcome: &Outcome| match outcome {
        Outcome::Loaded { .. } => "loaded",
        Outcome::Failed(fault) => fault.code(),
    };
    let file = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    host.report.iter().map(|report| (file(&report.path), code(&report.outcome))).collect()
}

fn request(id: &str) -> SnapshotRequest {
    SnapshotRequest {
        id: SnapshotId::new(id).unwrap(),
        created: Timestamp { secs: 1_700_000_000, nanos: 5 },
        label: Some("a label".into()),
        attributes: [("k".to_owned(), "v".to_owned())].into(),
        durability: Durability::Durable,
        policy: ah_plugin_api::CapturePolicy::default(),
    }
}

struct Scene {
    _dir: tempfile::TempDir,
    store: Dir,
    workspace: Dir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            Dir::open(dir.path().join(name)).unwrap()
        };
        let (store, workspace) = (open("store"), open("workspace"));
        std::fs::write(workspace.path().join("a.txt"), "hello").unwrap();
        Self { _dir: dir, store, workspace }
    }

    fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace)
    }
}

#[derive(Default)]
struct Notes {
    progress: Mutex<Vec<Progress>>,
    log: Mutex<Vec<(LogLevel, String)>>,
    cancel: bool,
}

impl Observer for Notes {
    fn progress(&self, progress: &Progress) {
        self.progress.lock().unwrap().push(progress.clone());
    }

    fn cancelled(&self) -> bool {
        self.cancel
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.log.lock().unwrap().push((level, message.to_owned()));
    }
}

#[test]
fn every_fault_is_named_and_the_good_one_works() {
    let _alone = alone();
    let bad = ["not_ours", "other_abi", "other_layout", "init_fails", "init_panics", "crashes", "exits"];
    let dir = folder(&bad);
    let path = |name: &str| dir.path().join(format!("libah_provider_{name}.so"));
    std::fs::copy(library("good"), path("good")).unwrap();
    std::fs::copy(library("good"), path("misnamed")).unwrap();
    std::fs::write(path("text"), "not a library\n").unwrap();
    std::fs::write(path("empty"), "").unwrap();
    let mut cut_off = std::fs::read(library("good")).unwrap();
    cut_off.truncate(cut_off.len() / 10);
    std::fs::write(path("cut_off"), cut_off).unwrap();
    std::fs::copy(library("good"), path("writable")).unwrap();
    std::fs::set_permissions(path("writable"), Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::write(dir.path().join("README"), "not looked at").unwrap();
    std::os::unix::fs::symlink("/nowhere", path("dangling")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();

    let host = load(&options(&[dir.path()]));
    let mut expected = vec![
        ("crashes", "crashes"),
        ("cut_off", "not-a-library"),
        ("dangling", "missing"),
        ("empty", "not-a-library"),
        ("exits", "exits"),
        ("fifo", "not-trusted"),
        ("folder", "not-trusted"),
        ("good", "loaded"),
        ("init_fails", "init-failed"),
        ("init_panics", "init-panicked"),
        ("misnamed", "other-name"),
        ("not_ours", "not-ours"),
        ("other_abi", "other-abi"),
        ("other_layout", "other-layout"),
        ("text", "not-a-library"),
        ("writable", "not-trusted"),
    ];
    expected.sort_unstable();
    let expected: Vec<_> = expected.iter().map(|(n, code)| (format!("libah_provider_{n}.so"), *code)).collect();
    assert_eq!(outcomes(&host), expected);
    for report in &host.report {
        if let Outcome::Failed(fault) = &report.outcome {
            let error = fault.to_error(&report.path);
            assert!(error.message.contains(report.path.to_str().unwrap()), "{error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
    }

    let good = host.get(&name("good")).unwrap();
    assert_eq!(good.description.version, "0.1.0");
    assert_eq!(good.abi.major, 1);
    let scene = Scene::new();
    let notes = Notes::default();
    let cx = Context::new(&notes);
    assert!(good.provider.probe(&scene.place(), &ProbeRequest::default(), &cx).unwrap().usable);
    let snapshot = good.provider.snapshot(&scene.place(), &request("one"), &cx).unwrap();
    assert_eq!(snapshot.label.as_deref(), Some("a label"));
    assert_eq!(notes.progress.lock().unwrap()[0].stage, "reading");
    assert_eq!(*notes.log.lock().unwrap(), [(LogLevel::Info, "kept 1 files".to_owned())]);
    assert_eq!(
        good.provider.list(&scene.place(), &ListRequest::default(), &cx).unwrap(),
        std::slice::from_ref(&snapshot)
    );
    let again = good.provider.snapshot(&scene.place(), &request("one"), &cx).unwrap_err();
    assert_eq!(again.kind, ErrorKind::AlreadyExists);

    let output = tempfile::tempfile().unwrap();
    let read = ReadRequest { snapshot: snapshot.reference, path: RelPath::new("a.txt").unwrap() };
    let place = Place::new(&scene.store).with_output(std::os::fd::AsFd::as_fd(&output));
    assert_eq!(good.provider.read(&place, &read, &cx).unwrap().size, 5);
    assert_eq!(rustix::fs::fstat(&output).unwrap().st_size, 5);

    let cancelled = Notes { cancel: true, ..Notes::default() };
    let stopped = good.provider.snapshot(&scene.place(), &request("two"), &Context::new(&cancelled)).unwrap_err();
    assert_eq!(stopped.kind, ErrorKind::Cancelled);
}

#[test]
fn what_fails_says_why() {
    let _alone = alone();
    let fault = |name: &str| load_file(&library(name), &options(&[])).unwrap_err();
    let Fault::Open(OpenError::InitFailed(Error { kind, message, hint, .. })) = fault("init_fails") else { panic!() };
    assert_eq!(
        (kind, message.as_str(), hint.as_deref()),
        (ErrorKind::FailedPrecondition, "the moon is not full", Some("wait"),)
    );
    let Fault::Open(OpenError::InitPanicked(error)) = fault("init_panics") else { panic!() };
    assert!(error.message.contains("no moon at all"), "{error}");
    assert!(error.causes.iter().any(|cause| cause.contains("plugin_init_panics.rs:")), "{error:?}");
    let Fault::Open(OpenError::OtherAbi { found, .. }) = fault("other_abi") else { panic!() };
    assert_eq!(found, "2.0.0");
    let Fault::Crashes { signal } = fault("crashes") else { panic!() };
    assert_eq!(signal, "SIGSEGV");
    let Fault::Exits { code } = fault("exits") else { panic!() };
    assert_eq!(code, 3);
    let fault = load_file(Path::new("/nowhere/libx.so"), &options(&[])).unwrap_err();
    assert_eq!(fault.to_error(Path::new("/nowhere/libx.so")).kind, ErrorKind::NotFound);
}

#[test]
fn what_a_plugin_says_of_its_version_fits_into_a_line() {
    let _alone = alone();
    let plugin = load_file(&library("prates"), &options(&[])).unwrap();
    assert!(plugin.description.version.len() < 5000, "{}", plugin.description.version.len());
    let Fault::Open(OpenError::Undescribed(error)) = load_file(&library("scribbles"), &options(&[])).unwrap_err()
    else {
        panic!()
    };
    assert_eq!(error.kind, ErrorKind::Internal);
}

#[test]
fn a_plugin_of_one_operation_ago_works_but_for_that_operation() {
    let _alone = alone();
    let plugin = load_file(&library("older"), &options(&[])).unwrap();
    let scene = Scene::new();
    let cx = Context::quiet();
    let snapshot = plugin.provider.snapshot(&scene.place(), &request("one"), &cx).unwrap();
    assert_eq!(snapshot.id.as_str(), "one");
    plugin.provider.reclaim(&scene.place(), &ReclaimRequest::default(), &cx).unwrap();
    let missing = plugin.provider.convert(&scene.place(), &ConvertRequest::default(), &cx).unwrap_err();
    assert_eq!(missing.kind, ErrorKind::Unsupported);
    let newer = load_file(&library("good"), &options(&[])).unwrap();
    assert_eq!(newer.provider.convert(&scene.place(), &ConvertRequest::default(), &cx).unwrap().notes.len(), 1);
}

#[test]
fn a_panic_comes_back_and_the_plugin_goes_on() {
    let _alone = alone();
    let plugin = load_file(&library("panics"), &options(&[])).unwrap();
    let scene = Scene::new();
    let cx = Context::quiet();
    let error = plugin.provider.snapshot(&scene.place(), &request("one"), &cx).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("as it was told to"), "{error}");
    assert!(error.causes.iter().any(|cause| cause.contains("plugin_panics.rs:")), "{error:?}");
    assert!(plugin.provider.list(&scene.place(), &ListRequest::default(), &cx).unwrap().is_empty());
}

#[test]
fn a_call_that_hangs_is_named_and_not_repeated() {
    let _alone = alone();
    let options = Options { limit: Some(Duration::from_secs(2)), ..options(&[]) };
    let plugin = load_file(&library("hangs"), &options).unwrap();
    let scene = Scene::new();
    let cx = Context::quiet();
    assert!(plugin.provider.probe(&scene.place(), &ProbeRequest::default(), &cx).unwrap().usable);
    let began = Instant::now();
    let error = plugin.provider.snapshot(&scene.place(), &request("one"), &cx).unwrap_err();
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(error.kind, ErrorKind::Unavailable);
    for part in ["hangs", "snapshot", "libplugin_hangs.so"] {
        assert!(error.message.contains(part), "{error}");
    }
    let began = Instant::now();
    let error = plugin.provider.list(&scene.place(), &ListRequest::default(), &cx).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// Options that remember of a file that it was loaded without harm.
fn remembered(file: &Path, state: &Path) -> Options {
    let options = Options { state: Some(state.to_owned()), limit: Some(Duration::from_secs(2)), ..options(&[]) };
    // For the first line.
    load_file(&library("good"), &options).unwrap();
    let (tried, at) = (state.join("plugins.tried"), file.metadata().unwrap());
    let times = format!("{}.{} {}.{}", at.mtime(), at.mtime_nsec(), at.ctime(), at.ctime_nsec());
    let line = format!("fine {} {} {} {times}\n", at.dev(), at.ino(), at.size());
    std::fs::write(&tried, std::fs::read_to_string(&tried).unwrap() + &line).unwrap();
    options
}

#[test]
fn a_file_that_was_fine_once_and_hangs_is_given_up() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let options = remembered(&library("dawdles"), state.path());
    let fault = load_file(&library("dawdles"), &options).unwrap_err();
    assert!(matches!(fault, Fault::Hangs(limit) if limit == Duration::from_secs(2)), "{fault}");
    // Others go on.
    load_file(&library("good"), &options).unwrap();
}

#[test]
fn a_file_that_holds_up_the_systems_loader_ends_the_process() {
    const STATE: &str = "AH_TEST_STATE";
    let _alone = alone();
    if let Some(state) = std::env::var_os(STATE) {
        let options = Options { state: Some(state.into()), limit: Some(Duration::from_secs(2)), ..options(&[]) };
        let loaded = load_file(&library("stalls"), &options);
        panic!("{loaded:?}");
    }
    let state = tempfile::tempdir().unwrap();
    remembered(&library("stalls"), state.path());
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "a_file_that_holds_up_the_systems_loader_ends_the_process"]).env(STATE, state.path());
    let mut child = own.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                panic!("it does not end: {}", child.wait().unwrap());
            }
        }
    };
    let told = std::io::read_to_string(child.stderr.unwrap()).unwrap();
    assert_eq!(status.code(), Some(EXIT_UNAVAILABLE.into()), "{told}");
    let file = library("stalls").canonicalize().unwrap();
    let error = Fault::Hangs(Duration::from_secs(2)).to_error(&file);
    assert_eq!(told, format!("error: {}\nhint: {}\n", error.message, error.hint.unwrap()));
    let tried = std::fs::read_to_string(state.path().join("plugins.tried")).unwrap();
    assert_eq!(tried.lines().count(), 2, "only the good one is remembered: {tried}");
}

#[test]
fn a_library_that_lacks_another_is_told_where_that_is_looked_for() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // As long as the name of the one that it takes the place of.
    let (path, needed, missing) = (dir.path().join("liblacks.so"), b"libgcc_s.so.1", b"libgcc_s.so.0");
    let mut bytes = std::fs::read(library("good")).unwrap();
    let at = bytes.windows(needed.len()).position(|name| name == needed).unwrap();
    bytes[at..at + needed.len()].copy_from_slice(missing);
    std::fs::write(&path, bytes).unwrap();
    let fault = load_file(&path, &options(&[])).unwrap_err();
    assert_eq!(fault.code(), "not-a-library", "{fault}");
    let hint = fault.hint(&path).unwrap();
    assert!(hint.contains("`ldd ") && hint.contains("$ORIGIN"), "{hint}");
}

#[test]
fn a_hint_can_be_typed_as_it_is() {
    let path = Path::new("/it's a/plugin.so");
    let hint = Fault::Exits { code: 1 }.hint(path).unwrap();
    assert!(hint.contains(r"`touch '/it'\''s a/plugin.so'`"), "{hint}");
    // What took too long is not remembered, so nothing needs to be touched.
    assert!(!Fault::Hangs(Duration::from_secs(2)).hint(path).unwrap().contains("touch"));
}

#[test]
fn whoever_wants_to_stop_does_not_wait_for_a_call_that_hangs() {
    let _alone = alone();
    let options = Options { limit: Some(Duration::from_secs(3600)), ..options(&[]) };
    let plugin = load_file(&library("hangs"), &options).unwrap();
    let scene = Scene::new();
    let cancelled = Notes { cancel: true, ..Notes::default() };
    let error = plugin.provider.snapshot(&scene.place(), &request("one"), &Context::new(&cancelled)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert!(error.causes.iter().any(|cause| cause.contains("hangs")), "{error:?}");
}

#[test]
fn of_two_plugins_of_one_name_the_first_is_used() {
    let _alone = alone();
    let (first, second) = (folder(&["good", "init_fails"]), folder(&["good"]));
    std::fs::copy(library("good"), second.path().join("libah_provider_init_fails.so")).unwrap();
    let host = load(&options(&[first.path(), second.path(), first.path()]));
    assert_eq!(host.plugins.len(), 1);
    assert!(host.plugins[0].path.starts_with(first.path().canonicalize().unwrap()));
    let faults: Vec<_> = outcomes(&host).into_iter().map(|(_, code)| code).collect();
    // The second folder's other file gets its chance, since the first one's failed; it is misnamed, though.
    assert_eq!(faults, ["loaded", "init-failed", "duplicate", "other-name"]);
    let Outcome::Failed(Fault::Duplicate { of }) = &host.report[2].outcome else { panic!() };
    assert_eq!(*of, host.plugins[0].path);
}

#[test]
fn a_place_that_the_user_named_must_be_there() {
    let _alone = alone();
    let host = load(&options(&[Path::new("/nowhere/at/all")]));
    assert_eq!(outcomes(&host), [("all".to_owned(), "missing")]);
}

#[test]
fn a_single_file_can_be_named() {
    let _alone = alone();
    let host = load(&options(&[&library("good")]));
    assert_eq!(outcomes(&host), [("libplugin_good.so".to_owned(), "loaded")]);
}

#[test]
fn outcomes_are_remembered_until_the_file_changes() {
    let _alone = alone();
    let dir = folder(&["good", "crashes"]);
    let state = tempfile::tempdir().unwrap();
    let options = Options { state: Some(state.path().to_owned()), ..options(&[dir.path()]) };
    let expected = |host: &Host| {
        let codes: Vec<_> = outcomes(host).into_iter().map(|(_, code)| code).collect();
        assert_eq!(codes, ["crashes", "loaded"]);
    };
    expected(&load(&options));
    let tried = state.path().join("plugins.tried");
    let text = std::fs::read_to_string(&tried).unwrap();
    assert!(text.contains("SIGSEGV ") && text.contains("fine "), "{text}");
    expected(&load(&options));
    assert_eq!(std::fs::read_to_string(&tried).unwrap(), text, "nothing was tried again");

    // Another outcome for the same identity is believed: the cache was asked.
    std::fs::write(&tried, text.replace("SIGSEGV", "SIGBUS")).unwrap();
    let host = load(&options);
    let Outcome::Failed(Fault::Crashes { signal }) = &host.report[0].outcome else { panic!() };
    assert_eq!(signal, "SIGBUS");

    // A new file is tried again, and so is everything when the memory is damaged.
    let file = dir.path().join("libah_provider_crashes.so");
    std::fs::remove_file(&file).unwrap();
    std::fs::copy(library("crashes"), &file).unwrap();
    expected(&load(&options));
    std::fs::write(&tried, b"\xff\xfe garbage\n\n").unwrap();
    expected(&load(&options));
    let left: Vec<PathBuf> = std::fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [tried]);
}

#[test]
fn what_was_loaded_before_is_loaded_again_only_when_it_is_needed() {
    let _alone = alone();
    let dir = folder(&["good", "crashes"]);
    let state = tempfile::tempdir().unwrap();
    let options = Options { state: Some(state.path().to_owned()), ..options(&[dir.path()]) };
    let counts = |host: &Host| (host.plugins.len(), host.prospects.len(), host.report.len());
    assert_eq!(counts(&look(&options)), (1, 0, 2), "the first time it is loaded");
    let host = look(&options);
    assert_eq!(counts(&host), (0, 1, 1), "what is refused is told of at once");
    let prospect = &host.prospects[0];
    let plugin = prospect.load().unwrap();
    assert_eq!((&plugin.description.name, plugin.description.rank), (&prospect.known.name, prospect.known.rank));
    assert_eq!(counts(&load(&options)), (1, 0, 2), "who wants all loads all");

    // Another file in its place is looked at anew.
    let file = dir.path().join("libah_provider_good.so");
    std::fs::remove_file(&file).unwrap();
    std::fs::copy(library("good"), &file).unwrap();
    assert_eq!(counts(&look(&options)), (1, 0, 2));

    // Trust is asked for when it is loaded; what failed then is looked at from the beginning the next time.
    let host = look(&options);
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(host.prospects[0].load(), Err(Fault::NotTrusted(_))));
    let host = look(&options);
    assert_eq!(counts(&host), (0, 0, 2));
    assert!(outcomes(&host).iter().all(|(_, code)| *code == "not-trusted"), "{:?}", outcomes(&host));
}
