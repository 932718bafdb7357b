//! The messages and their nouns: what other versions may send, and what no message may smuggle in.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use ah_plugin_api::{
    Capability, Context, Description, Dir, Done, EntryKind, Error, ErrorKind, Op, Place, Probe, ProbeRequest, Provider,
    RelPath, Result, Snapshot, SnapshotId, Timestamp, wire,
};
use ciborium::Value;
use proptest::prelude::*;
use serde::Serialize;

#[test]
fn an_unknown_kind_reads_as_unknown() {
    for (text, kind) in [("not-found", ErrorKind::NotFound), ("from-the-future", ErrorKind::Unknown)] {
        let bytes = wire::encode(&text).unwrap();
        assert_eq!(wire::decode::<ErrorKind>(&bytes).unwrap(), kind);
    }
}

#[test]
fn every_known_value_survives_its_text() {
    for kind in ErrorKind::ALL {
        assert_eq!(ErrorKind::from_text(kind.as_str()), *kind);
    }
    for capability in Capability::ALL {
        assert_eq!(Capability::from_text(capability.as_str()), *capability);
    }
}

#[derive(Serialize)]
struct ProbeOfTomorrow {
    usable: bool,
    reason: &'static str,
    can_delete: bool,
    shine: u32,
}

#[test]
fn unknown_fields_are_ignored_and_missing_optional_ones_filled() {
    let newer = ProbeOfTomorrow { usable: true, reason: "because", can_delete: true, shine: 7 };
    let probe: Probe = wire::decode(&wire::encode(&newer).unwrap()).unwrap();
    assert!(probe.usable && probe.modes.is_empty() && probe.remedy.is_none());
}

#[test]
fn an_error_survives_the_journey() {
    let error = Error::from_io("cannot write the index", &std::io::Error::from_raw_os_error(28))
        .with_hint("free some space")
        .context("the snapshot failed");
    let back: Error = wire::decode(&wire::encode(&error).unwrap()).unwrap();
    assert_eq!(back, error);
    assert_eq!(back.kind, ErrorKind::ResourceExhausted);
    assert_eq!(back.errno, Some(28));
    assert_eq!(back.causes[0], "cannot write the index");
}

#[test]
fn paths_that_leave_the_workspace_cannot_be_made() {
    for bad in [&b"/etc/passwd"[..], b"..", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b"] {
        assert_eq!(RelPath::new(bad).unwrap_err().kind, ErrorKind::InvalidArgument, "{bad:?}");
        #[derive(Serialize)]
        struct Bytes<'a>(#[serde(with = "serde_bytes")] &'a [u8]);
        assert!(wire::decode::<RelPath>(&wire::encode(&Bytes(bad)).unwrap()).is_err(), "{bad:?} came in by message");
    }
}

#[test]
fn components_not_bytes_decide_what_lies_below() {
    let path = |text: &str| RelPath::new(text).unwrap();
    assert!(path("a/b").starts_with(&path("a")));
    assert!(path("a").starts_with(&RelPath::root()));
    assert!(!path("ab").starts_with(&path("a")));
    assert_eq!(path("a/b").parent().unwrap(), path("a"));
    assert_eq!(path("a").parent().unwrap(), RelPath::root());
    assert_eq!(RelPath::root().parent(), None);
    assert_eq!(path("a/b").file_name().unwrap(), b"b");
}

#[test]
fn times_before_1970_round_down() {
    let before = Timestamp::from(UNIX_EPOCH - Duration::from_millis(1));
    assert_eq!(before, Timestamp { secs: -1, nanos: 999_000_000 });
    assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(2)), Timestamp { secs: -2, nanos: 0 });
}

#[test]
fn a_second_has_so_many_nanoseconds_on_every_way_in() {
    let come_in = |nanos| wire::decode::<Timestamp>(&wire::encode(&Timestamp { secs: 1, nanos }).unwrap());
    assert_eq!(come_in(999_999_999).unwrap(), Timestamp { secs: 1, nanos: 999_999_999 });
    for nanos in [1_000_000_000, u32::MAX] {
        assert_eq!(come_in(nanos).unwrap_err().kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn ids_are_checked_on_every_way_in() {
    assert!(SnapshotId::new("klmnopqrstuv").is_ok());
    for bad in ["", "../x", "A", "a b", &"a".repeat(65)] {
        assert!(SnapshotId::new(bad).is_err());
        assert!(wire::decode::<SnapshotId>(&wire::encode(&bad).unwrap()).is_err());
    }
}

proptest! {
    #[test]
    fn any_valid_path_survives_the_journey(parts in prop::collection::vec(prop::collection::vec(1u8.., 1..9), 0..5)) {
        let bytes = parts.join(&b'/');
        if let Ok(path) = RelPath::new(bytes) {
            let back: RelPath = wire::decode(&wire::encode(&path).unwrap()).unwrap();
            prop_assert_eq!(&back, &path);
            let mut rebuilt = RelPath::root();
            for part in path.components() {
                rebuilt = rebuilt.join(part).unwrap();
            }
            prop_assert_eq!(rebuilt, path);
        }
    }

    #[test]
    fn garbage_is_refused_not_believed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        // Must return; a value, if one comes out, is one that could have been made by hand.
        if let Ok(snapshot) = wire::decode::<Snapshot>(&bytes) {
            prop_assert!(SnapshotId::new(snapshot.id.as_str()).is_ok());
        }
        let _ = wire::decode::<Error>(&bytes);
    }
}

/// Answers `probe` with what it was given, panics at `sync`.
struct Echo;

impl Provider for Echo {
    fn describe(&self) -> Description {
        Description {
            name: ah_plugin_api::ProviderName::new("echo").unwrap(),
            version: "1".into(),
            rank: None,
            filesystems: [0x9123_683e].into(),
            capabilities: [Capability::Diff].into(),
        }
    }
    fn probe(&self, place: &Place<'_>, _: &ProbeRequest, _: &Context<'_>) -> Result<Probe> {
        let workspace = place.need_workspace()?;
        let names = rustix::fs::Dir::read_from(workspace).unwrap().flatten().count();
        let reason = format!("{} has {names} entries", workspace.path().display());
        Ok(Probe {
            usable: true,
            reason,
            remedy: None,
            modes: [].into(),
            can_delete: place.output.is_some(),
            convertible: None,
        })
    }
    fn snapshot(&self, _: &Place<'_>, _: &ah_plugin_api::SnapshotRequest, _: &Context<'_>) -> Result<Snapshot> {
        Err(Error::new(ErrorKind::Busy, "busy"))
    }
    fn sync(&self, _: &Place<'_>, _: &ah_plugin_api::SnapshotRef, _: &Context<'_>) -> Result<Done> {
        panic!("oh {}", "no")
    }
    fn list(&self, _: &Place<'_>, _: &ah_plugin_api::ListRequest, _: &Context<'_>) -> Result<Vec<Snapshot>> {
        Ok(Vec::new())
    }
    fn stat(&self, _: &Place<'_>, _: &ah_plugin_api::SnapshotRef, _: &Context<'_>) -> Result<Snapshot> {
        Err(Error::new(ErrorKind::NotFound, "none"))
    }
    fn destroy(&self, _: &Place<'_>, _: &ah_plugin_api::DestroyRequest, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }
    fn mount(&self, _: &Place<'_>, _: &ah_plugin_api::MountRequest, _: &Context<'_>) -> Result<ah_plugin_api::View> {
        Err(Error::new(ErrorKind::NotFound, "none"))
    }
    fn unmount(&self, _: &Place<'_>, _: &ah_plugin_api::UnmountRequest, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }
    fn reclaim(
        &self,
        _: &Place<'_>,
        _: &ah_plugin_api::ReclaimRequest,
        _: &Context<'_>,
    ) -> Result<ah_plugin_api::Reclaimed> {
        Ok(ah_plugin_api::Reclaimed::default())
    }
}

/// The shortest way there is: straight from one end to the other.
struct Loopback;

impl wire::Caller for Loopback {
    fn call(&self, op: Op, request: &[u8], fds: &[std::os::fd::BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        wire::serve(&Echo, op, request, fds, cx)
    }
}

#[test]
fn calls_and_descriptors_arrive_and_panics_come_back_as_errors() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("one"), "").unwrap();
    let (store, workspace) = (Dir::open("/").unwrap(), Dir::open(temp.path()).unwrap());
    let remote = wire::Remote::new(Loopback, Echo.describe());
    let cx = Context::quiet();
    let place = Place::new(&store).with_workspace(&workspace);
    let probe = remote.probe(&place, &ProbeRequest::default(), &cx).unwrap();
    assert_eq!(probe.reason, format!("{} has 3 entries", temp.path().display()));
    assert!(!probe.can_delete);

    let reference = ah_plugin_api::SnapshotRef { snapshot: ah_plugin_api::Reference::new("x").unwrap() };
    let panicked = remote.sync(&place, &reference, &cx).unwrap_err();
    assert_eq!(panicked.kind, ErrorKind::Internal);
    assert!(panicked.message.contains("oh no"), "{panicked}");
    assert!(panicked.message.contains(&format!("the provider {}", Echo.describe().name)), "{panicked}");

    let without = remote.probe(&Place::new(&store), &ProbeRequest::default(), &cx).unwrap_err();
    assert_eq!(without.kind, ErrorKind::InvalidArgument);
}

#[test]
fn a_message_with_the_wrong_number_of_descriptors_is_refused() {
    let bytes = [0xa0]; // an empty CBOR map: no paths at all
    let error = wire::serve(&Echo, Op::List, &bytes, Vec::new(), &Context::quiet()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    let unknown = wire::serve(&Echo, Op::Unknown, &bytes, Vec::new(), &Context::quiet()).unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::InvalidArgument);
    assert_eq!(EntryKind::from_text("portal"), EntryKind::Unknown);
}

/// Asks this instead of what it is given.
struct Asks(Option<Value>);

impl wire::Caller for Asks {
    fn call(&self, op: Op, request: &[u8], fds: &[std::os::fd::BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let mut message: BTreeMap<String, Value> = wire::decode(request).unwrap();
        let former = message.remove("request");
        assert!(former.is_some());
        message.extend(self.0.clone().map(|asked| ("request".to_owned(), asked)));
        Loopback.call(op, &wire::encode(&message).unwrap(), fds, cx)
    }
}

#[test]
fn what_only_a_newer_version_can_ask_is_not_supported() {
    let temp = tempfile::tempdir().unwrap();
    let store = Dir::open(temp.path()).unwrap();
    let (place, cx) = (Place::new(&store), Context::quiet());
    let map = |key: &str, value: Value| Value::Map(vec![(key.into(), value)]);
    let reference = || ah_plugin_api::Reference::new("x").unwrap();
    let destroyed = |asked| {
        let remote = wire::Remote::new(Asks(asked), Echo.describe());
        remote.destroy(&place, &ah_plugin_api::DestroyRequest::Snapshot(reference()), &cx)
    };
    assert_eq!(destroyed(Some(map("snapshot", "x".into()))), Ok(Done {}));
    assert_eq!(destroyed(Some(map("view", "x".into()))).unwrap_err().kind, ErrorKind::Unsupported);
    let sides = vec![("from".into(), map("view", "x".into())), ("to".into(), "workspace".into())];
    let diff = ah_plugin_api::DiffRequest {
        from: ah_plugin_api::Side::Workspace,
        to: ah_plugin_api::Side::Workspace,
        paths: Vec::new(),
        times: false,
        policy: ah_plugin_api::CapturePolicy::default(),
    };
    let remote = wire::Remote::new(Asks(Some(Value::Map(sides))), Echo.describe());
    let error = remote.diff(&place, &diff, &cx).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.message.contains("does not know what is asked"), "{error:?}");
    // What asks nothing is none.
    assert_eq!(destroyed(None).unwrap_err().kind, ErrorKind::InvalidArgument);
}

/// Answers everything with this, and talks meanwhile.
struct Says(Result<Vec<u8>>);

impl wire::Caller for Says {
    fn call(&self, _: Op, _: &[u8], _: &[std::os::fd::BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        cx.log(ah_plugin_api::LogLevel::Warn, &"x".repeat(1 << 20));
        cx.progress(&"x".repeat(1 << 20), 1, None);
        self.0.clone()
    }
}

/// Bears no long speeches.
struct Impatient;

impl ah_plugin_api::Observer for Impatient {
    fn log(&self, _: ah_plugin_api::LogLevel, message: &str) {
        assert!(message.len() < 5000);
    }

    fn progress(&self, progress: &ah_plugin_api::Progress) {
        assert!(progress.stage.len() < 5000);
    }
}

/// Wants everything to stop.
struct Weary;

impl ah_plugin_api::Observer for Weary {
    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn who_stops_without_being_asked_has_failed() {
    let temp = tempfile::tempdir().unwrap();
    let store = Dir::open(temp.path()).unwrap();
    let (name, capabilities) = (ah_plugin_api::ProviderName::new("tired").unwrap(), [].into());
    let (version, filesystems) = ("0".to_owned(), [].into());
    let description = Description { name, version, rank: None, filesystems, capabilities };
    let provider = wire::Remote::new(Says(Err(Error::new(ErrorKind::Cancelled, "enough"))), description);
    let list =
        |cx: &Context<'_>| provider.list(&Place::new(&store), &ah_plugin_api::ListRequest::default(), cx).unwrap_err();
    let error = list(&Context::quiet());
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("tired") && error.causes.contains(&"enough".to_owned()), "{error:?}");
    assert_eq!(list(&Context::new(&Weary)).kind, ErrorKind::Cancelled);
}

#[test]
fn what_says_nothing_of_the_caller_is_said_to_be_the_providers() {
    let temp = tempfile::tempdir().unwrap();
    let store = Dir::open(temp.path()).unwrap();
    let fails = |kind, message: &str| {
        let (name, capabilities) = (ah_plugin_api::ProviderName::new("terse").unwrap(), [].into());
        let (version, filesystems) = ("0".to_owned(), [].into());
        let description = Description { name, version, rank: None, filesystems, capabilities };
        let provider = wire::Remote::new(Says(Err(Error::new(kind, message))), description);
        provider.list(&Place::new(&store), &ah_plugin_api::ListRequest::default(), &Context::quiet()).unwrap_err()
    };
    for kind in [ErrorKind::Internal, ErrorKind::Unknown] {
        assert_eq!(fails(kind, "bad").message, "the provider terse: bad");
        // By way of its own service.
        assert_eq!(fails(kind, "the provider terse: bad").message, "the provider terse: bad");
    }
    assert_eq!(fails(ErrorKind::NotFound, "bad").message, "bad");
}

#[test]
fn answers_that_cannot_be_relied_on_are_refused_and_long_ones_cut() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().canonicalize().unwrap();
    let target = top.join("real/sub");
    std::fs::create_dir_all(&target).unwrap();
    std::os::unix::fs::symlink("real", top.join("link")).unwrap();
    let (store, through) = (Dir::open(&target).unwrap(), Dir::open(top.join("link/sub")).unwrap());
    let provider = |answer| {
        let (name, capabilities) = (ah_plugin_api::ProviderName::new("liar").unwrap(), [].into());
        let (version, filesystems) = ("0".to_owned(), [].into());
        wire::Remote::new(Says(answer), Description { name, version, rank: None, filesystems, capabilities })
    };
    fn says<T: Serialize>(answer: &T) -> Result<Vec<u8>> {
        Ok(wire::encode(answer).unwrap())
    }
    fn is_refused<T: std::fmt::Debug>(answer: Result<T>) {
        let error = answer.unwrap_err();
        assert!(
            error.kind == ErrorKind::Internal && error.message.starts_with("the provider liar answered with "),
            "{error}"
        );
    }
    let (place, cx) = (Place::new(&store), Context::new(&Impatient));
    let reference = ah_plugin_api::Reference::new("r").unwrap();
    let entry = |name: &str| {
        let (kind, name) = (EntryKind::Dir, name.as_bytes().to_vec());
        ah_plugin_api::Entry {
            name,
            kind,
            mode: 0o755,
            size: 0,
            mtime: Timestamp::default(),
            content: None,
            ignored: false,
        }
    };

    let look = |path: &str| ah_plugin_api::LookupRequest {
        snapshots: vec![reference.clone(), reference.clone()],
        path: RelPath::new(path).unwrap(),
    };
    let (here, no, top_of_it) = (Some(entry("a")), None, Some(entry("")));
    let with_mode = |mode| ah_plugin_api::Entry { mode, ..entry("a") };
    for (path, answer, good) in [
        ("a", vec![], false),
        ("a", vec![no.clone(); 3], false),
        ("", vec![top_of_it.clone(), no.clone()], false),
        ("a", vec![here.clone(), no], true),
        ("a", vec![here.clone(), Some(entry("b"))], false),
        ("b/a", vec![here.clone(), here.clone()], true),
        ("a", vec![Some(with_mode(0o100_755)), here.clone()], false),
        ("", vec![top_of_it.clone(), here], false),
        ("", vec![top_of_it.clone(), top_of_it], true),
    ] {
        let answer = provider(says(&answer)).lookup(&place, &look(path), &cx);
        if good { drop(answer.unwrap()) } else { is_refused(answer) }
    }

    let read = ah_plugin_api::ReadRequest { snapshot: reference.clone(), path: RelPath::new("b/a").unwrap() };
    for bad in [entry("b"), entry(""), with_mode(u32::MAX)] {
        is_refused(provider(says(&bad)).read(&place, &read, &cx));
    }
    provider(says(&with_mode(0o7777))).read(&place, &read, &cx).unwrap();

    let list = ah_plugin_api::ReadDirRequest { snapshot: reference.clone(), path: RelPath::root() };
    is_refused(provider(says(&vec![with_mode(0o10_000)])).read_dir(&place, &list, &cx));
    for bad in [vec![".."], vec!["../evil"], vec![""], vec!["a\0b"], vec!["b", "a"], vec!["a", "a"]] {
        let entries: Vec<_> = bad.into_iter().map(entry).collect();
        is_refused(provider(says(&entries)).read_dir(&place, &list, &cx));
    }
    assert_eq!(provider(says(&vec![entry("a"), entry("b")])).read_dir(&place, &list, &cx).unwrap().len(), 2);

    let request =
        ah_plugin_api::CloneRequest { snapshot: reference.clone(), name: ah_plugin_api::FileName::new("it").unwrap() };
    let workspace = Dir::open(&top).unwrap();
    let cloned = |path: std::path::PathBuf, target: &Dir| {
        let notes = vec!["x".repeat(64 << 10); 200];
        let clone = ah_plugin_api::WritableClone { path, reference: reference.clone(), notes };
        provider(says(&clone)).clone_snapshot(&place.with_target(target).with_workspace(&workspace), &request, &cx)
    };
    for bad in
        [target.clone(), top.clone(), top.parent().unwrap().to_owned(), target.join("itself"), target.join("it/..")]
    {
        is_refused(cloned(bad, &store));
    }
    for (at, target) in
        [(target.join("it"), &store), (target.join("it/below"), &through), ("/elsewhere".into(), &store)]
    {
        assert!(cloned(at, target).unwrap().notes.iter().map(String::len).sum::<usize>() < 1 << 20);
    }

    let id = |letter: &str| SnapshotId::new(letter.repeat(12)).unwrap();
    let request = ah_plugin_api::SnapshotRequest {
        id: id("k"),
        created: Timestamp::default(),
        label: None,
        attributes: [].into(),
        durability: ah_plugin_api::Durability::Instant,
        policy: ah_plugin_api::CapturePolicy::default(),
    };
    let taken = |id| Snapshot {
        id,
        reference: reference.clone(),
        created: Timestamp::default(),
        label: None,
        attributes: [].into(),
        durability: ah_plugin_api::Durability::Instant,
        tree: None,
        entries: None,
        omitted_total: 0,
        omitted: Vec::new(),
        repository: None,
        pins: None,
        changed_below: None,
    };
    is_refused(provider(says(&taken(id("z")))).snapshot(&place, &request, &cx));
    provider(says(&taken(id("k")))).snapshot(&place, &request, &cx).unwrap();

    let diff = ah_plugin_api::DiffRequest {
        from: ah_plugin_api::Side::Snapshot(reference.clone()),
        to: ah_plugin_api::Side::Snapshot(reference.clone()),
        paths: vec![RelPath::new("src").unwrap(), RelPath::new("a/b").unwrap()],
        times: false,
        policy: ah_plugin_api::CapturePolicy::default(),
    };
    for (paths, good) in [
        (vec![("a/b", "b"), ("src", "src"), ("src/x", "x")], true),
        (vec![("src/y", "y"), ("src/x", "x")], false),
        (vec![("src/x", "x"), ("src/x", "x")], false),
        (vec![("src/x", "..")], false),
        (vec![("src/x", "")], false),
        (vec![("a", "a")], false),
        (vec![("other", "other")], false),
    ] {
        let change = |(path, name)| ah_plugin_api::Change {
            path: RelPath::new(path).unwrap(),
            before: None,
            after: Some(entry(name)),
        };
        let changes = paths.into_iter().map(change).collect();
        let (method, lost, unread) = (ah_plugin_api::DiffMethod::Native, Vec::new(), Vec::new());
        let answer = ah_plugin_api::Changes { changes, method, untouched: false, lost, unread };
        let answer = provider(says(&answer)).diff(&place, &diff, &cx);
        if good { drop(answer.unwrap()) } else { is_refused(answer) }
    }

    let detail = Some("x".repeat(1 << 20));
    let (path, reason) = (RelPath::new("a").unwrap(), ah_plugin_api::OmitReason::Ignored);
    let omitted = vec![ah_plugin_api::Omission { path, reason, detail }];
    let (long, head) = (Some("x".repeat(1 << 20)), Some("0123".to_owned()));
    let state = ah_plugin_api::RepositoryState {
        head,
        branch: long.clone(),
        branch_hex: long.clone(),
        first_commit: long.clone(),
        marks: long.clone(),
        not_kept: None,
    };
    let paths = (0..10_000).map(|number| RelPath::new(format!("{number}")).unwrap()).collect();
    let changed_below = Some(ah_plugin_api::ChangedBelow { total: 10_000, paths });
    let wordy = Snapshot { omitted, pins: long, repository: Some(state), changed_below, ..taken(id("k")) };
    let snapshot = ah_plugin_api::SnapshotRef { snapshot: reference.clone() };
    let told = [
        provider(says(&wordy)).snapshot(&place, &request, &cx).unwrap(),
        provider(says(&wordy)).stat(&place, &snapshot, &cx).unwrap(),
        provider(says(&vec![wordy])).list(&place, &ah_plugin_api::ListRequest::default(), &cx).unwrap().remove(0),
    ];
    for told in told {
        assert!(told.pins.unwrap().len() < 5000 && told.omitted[0].detail.as_ref().unwrap().len() < 5000);
        // What is compared is not cut.
        let known = ah_plugin_api::RepositoryState {
            head: Some("0123".to_owned()),
            ..ah_plugin_api::RepositoryState::default()
        };
        assert_eq!(told.repository, Some(known));
        let below = told.changed_below.unwrap();
        assert_eq!((below.total, below.paths.len()), (10_000, 100));
    }
    let actions = vec!["x".repeat(1 << 10); 10_000];
    let reclaimed = ah_plugin_api::Reclaimed { stays: actions.clone(), actions, ..Default::default() };
    let due = ah_plugin_api::ReclaimRequest::default();
    let once = provider(says(&reclaimed)).reclaim(&place, &due, &cx).unwrap();
    assert_eq!((once.actions.len(), once.actions[99].as_str()), (100, "and 9901 more"));
    // As through a helper.
    let twice = provider(says(&once)).reclaim(&place, &due, &cx).unwrap();
    assert_eq!(twice.actions, once.actions);
    assert_eq!(once.stays, once.actions);

    let long = Error::new(ErrorKind::NotFound, "ä".repeat(1 << 20)).with_hint("x".repeat(1 << 20));
    let error = provider(Err(long)).snapshot(&place, &request, &cx).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.len() < 5000 && error.hint.unwrap().len() < 5000);
}
