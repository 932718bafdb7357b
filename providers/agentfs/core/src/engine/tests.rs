//! Tests of what only shows when the disk refuses something in a certain moment.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Engine, Opening, Options};
use crate::lock;
use crate::types::{Owner, ROOT};
use crate::view::View;

const ME: Owner = Owner { mode: 0o644, uid: 0, gid: 0 };

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.0.path().join("lower")).unwrap();
        Engine::create(&place.store(), &place.0.path().join("lower")).unwrap();
        place
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn open(&self) -> Arc<Engine> {
        let options = Options { background: false, ..Options::default() };
        Arc::new(Engine::open(&self.store(), &self.0.path().join("lower"), options, Opening::Use).unwrap())
    }
}

/// A branch of the lower directory, and its pen's view.
fn branch(engine: &Arc<Engine>) -> (u32, View) {
    let line = engine.branch(engine.base(b"").unwrap(), b"").unwrap();
    (line, View::new(engine.clone(), line, None).unwrap())
}

fn make(view: &View, name: &str, content: &[u8]) {
    let ino = view.create(ROOT, name.as_bytes(), ME).unwrap().ino;
    view.write(ino, 0, content).unwrap();
}

fn content(view: &View, name: &str) -> Vec<u8> {
    let ino = view.lookup(ROOT, name.as_bytes()).unwrap().ino;
    view.read(ino, 0, 1 << 20).unwrap()
}

#[test]
fn a_checkpoint_that_cannot_sync_loses_nothing() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "first", b"first");
    *lock(&engine.segments.refuse) = Some(ErrorKind::StorageFull);
    engine.checkpoint().unwrap_err();
    make(&view, "second", b"second");
    assert_eq!(content(&view, "first"), b"first");
    drop((view, engine));
    let engine = place.open();
    let view = View::new(engine.clone(), line, None).unwrap();
    assert_eq!(content(&view, "first"), b"first");
    *lock(&engine.segments.refuse) = Some(ErrorKind::StorageFull);
    engine.checkpoint().unwrap_err();
    *lock(&engine.segments.refuse) = None;
    engine.checkpoint().unwrap();
    drop((view, engine));
    let engine = place.open();
    assert_eq!(content(&View::new(engine.clone(), line, None).unwrap(), "first"), b"first");
}
