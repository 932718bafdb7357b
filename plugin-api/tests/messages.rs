//! The messages and their nouns: what other versions may send, and what no message may smuggle in.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, UNIX_EPOCH};

use ah_plugin_api::{
    Capability, Context, Description, Dir, Done, EntryKind, Error, ErrorKind, Op, Place, Probe, ProbeRequest, Provider,
    RelPath, Result, Snapshot, SnapshotId, Timestamp, wire,
};
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
