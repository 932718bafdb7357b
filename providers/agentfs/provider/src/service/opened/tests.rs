use super::*;
use crate::home::LOWER;
use std::time::{Duration, Instant};

use ah_plugin_api::{
    DestroyRequest, ListRequest, Observer, Place, Provider, ReclaimRequest, SnapshotRef, UnmountRequest, UsageRequest,
};

/// A home and a directory, in one that goes with the first.
fn places() -> (tempfile::TempDir, Dir, Dir) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        Dir::open(dir.path().join(name)).unwrap()
    };
    let (home, lower) = (at("home"), at("lower"));
    Shelf::make(&home, None).unwrap();
    (dir, home, lower)
}

#[test]
fn while_a_tree_is_opened_anew_nothing_in_it_is_told_to_be_gone() {
    let (dir, home, lower) = places();
    let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
    let (place, cx) = (Place::new(&home), Context::quiet());
    let list = || service.list(&place, &ListRequest::default(), &cx).map(|snapshots| snapshots.len());
    let gone = || {
        let snapshot = Reference::new("aaaaaaaa").unwrap();
        service.destroy(&place, &DestroyRequest::Snapshot(snapshot), &cx).map_err(|error| error.kind)
    };
    assert_eq!(list().unwrap(), 0, "there is none");
    service.for_lower(&lower, &cx).unwrap();
    assert_eq!((list().unwrap(), gone().is_ok()), (0, true));
    service.close();
    assert_eq!(list().unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(gone().unwrap_err(), ErrorKind::Unavailable);
    // What cannot be opened says why, and what can be is as before.
    std::fs::rename(home.path().join(TREE), dir.path().join("aside")).unwrap();
    std::fs::write(home.path().join(TREE), "no folder").unwrap();
    assert!(service.for_lower(&lower, &cx).is_err());
    assert_ne!(list().unwrap_err().message, "the AgentFS tree is being opened anew");
    std::fs::remove_file(home.path().join(TREE)).unwrap();
    std::fs::rename(dir.path().join("aside"), home.path().join(TREE)).unwrap();
    service.for_lower(&lower, &cx).unwrap();
    assert_eq!((list().unwrap(), gone().is_ok()), (0, true));
}

#[test]
fn what_is_lost_of_a_tree_is_not_told_to_have_held_nothing() {
    let (dir, home, lower) = places();
    let service = || Service::open(Dir::open(home.path()).unwrap()).unwrap();
    service().for_lower(&lower, &Context::quiet()).unwrap();
    std::fs::remove_file(home.path().join(TREE).join("format")).unwrap();
    every_answer_is_a_loss(&service(), &Place::new(&home));
    // Nor once somebody has put things in order, who makes no tree in place of the one that may come back.
    std::fs::rename(home.path().join(TREE), dir.path().join("aside")).unwrap();
    let service = service();
    let place = Place { workspace: Some(&lower), ..Place::new(&home) };
    (0..2).for_each(|_| every_answer_is_a_loss(&service, &place));
    let cx = Context::quiet();
    for told in [service.for_lower(&lower, &cx).map(drop).err(), service.refuses(&lower, &cx).unwrap()] {
        assert!(told.is_some_and(|told| told.kind == ErrorKind::DataLoss && told.hint.is_some()));
    }
    assert!(!home.path().join(TREE).exists());
    // Who gives it up begins anew.
    std::fs::remove_file(home.path().join(LOWER)).unwrap();
    assert_eq!(service.list(&place, &ListRequest::default(), &cx).unwrap().len(), 0);
    service.for_lower(&lower, &cx).unwrap();
}

fn every_answer_is_a_loss(service: &Service, place: &Place<'_>) {
    let cx = Context::quiet();
    let of = |name: &str| Reference::new(name.repeat(8)).unwrap();
    let answers = [
        service.list(place, &ListRequest::default(), &cx).map(drop),
        service.unmount(place, &UnmountRequest { view: of("abcd"), unused: false }, &cx).map(drop),
        service.destroy(place, &DestroyRequest::Snapshot(of("a")), &cx).map(drop),
        service.usage(place, &UsageRequest { snapshots: Vec::new() }, &cx).map(drop),
        service.reclaim(place, &ReclaimRequest { auto: true, forgotten: Vec::new() }, &cx).map(drop),
        service.stat(place, &SnapshotRef { snapshot: of("a") }, &cx).map(drop),
    ];
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(error.kind == ErrorKind::DataLoss && error.hint.is_some(), "{error:?}");
    }
}

#[test]
fn a_branch_of_an_older_program_is_known_by_its_number_alone_and_no_other_is() {
    let (dir, home, lower) = places();
    let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
    let open = service.for_lower(&lower, &Context::quiet()).unwrap();
    let base = open.tree.base(b"").unwrap();
    let place = PlaceLabel::new("0123456789abcdef0123456789abcdef", &dir.path().join("branch")).unwrap();
    let remove = |reference: &Reference| {
        service.destroy(&Place::new(&home), &DestroyRequest::Clone(reference.clone()), &Context::quiet()).unwrap();
        open.tree.branches().len()
    };
    for mark in [None, place.mark.clone()] {
        let mut label = place.clone();
        label.mark = mark;
        let bytes = label.encode().unwrap();
        assert_eq!(PlaceLabel::decode(&bytes).unwrap(), label);
        let branch = open.tree.branch(base, &bytes).unwrap();
        for other in [None, label.mark.as_deref(), Some("0")].into_iter().filter(|it| *it != label.mark.as_deref()) {
            assert_eq!(remove(&service.reference(branch, other).unwrap()), 1, "{other:?}");
        }
        let [reference] = &service.references(&open.tree).unwrap()[..] else { panic!("there is one") };
        let source = service.shown(Some(branch)).source();
        assert_eq!(*reference == Reference::new(source).unwrap(), label.mark.is_none(), "as that wrote it");
        assert_eq!(remove(reference), 0);
    }
}

/// That who waits for what somebody holds stops when it is told to.
fn stops<G>(held: G, call: impl FnOnce(&Context<'_>) -> Result<()> + Send) {
    struct Stopped;
    impl Observer for Stopped {
        fn cancelled(&self) -> bool {
            true
        }
    }
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| call(&Context::new(&Stopped)));
        let began = Instant::now();
        while !asked.is_finished() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_stopped = asked.is_finished();
        drop(held);
        let answer = asked.join().unwrap();
        assert!(has_stopped && answer.is_err_and(|error| error.kind == ErrorKind::Cancelled));
    });
}

#[test]
fn who_waits_for_a_tree_or_for_who_takes_snapshots_can_stop() {
    let (_dir, home, lower) = places();
    let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
    let open = service.for_lower(&lower, &Context::quiet()).unwrap();
    let list = |cx: &Context<'_>| service.list(&Place::new(&home), &ListRequest::default(), cx).map(drop);
    stops(open.taking.read(), list);
    drop(open);
    service.close();
    stops(service.opening.lock(), list);
    stops(service.opening.lock(), |cx| service.for_lower(&lower, cx).map(drop));
    stops(service.opening.lock(), |cx| service.refuses(&lower, cx).map(drop));
    stops(service.opening.lock(), |cx| service.open_if_it_can_be(cx));
    service.for_lower(&lower, &Context::quiet()).unwrap();
    list(&Context::quiet()).unwrap();
}
