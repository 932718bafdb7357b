//! Which log goes on behind the base.

use super::*;
use crate::store::base::Base;

#[test]
fn a_log_that_an_older_program_began_is_not_asked_for() {
    let place = Place::new();
    let engine = place.open();
    branch(&engine);
    engine.checkpoint().unwrap();
    let batch = lock(&engine.log).batch;
    drop(engine);
    std::fs::remove_dir_all(place.store().join("log")).unwrap();
    std::fs::create_dir(place.store().join("log")).unwrap();
    let options = Options { background: false, ..Options::default() };
    let refused = Engine::open(&place.store(), &place.0.path().join("lower"), options, Opening::Use);
    assert!(matches!(refused, Err(crate::Error::Corrupt(_))));
    // What that writes of a checkpoint: not which log goes on.
    let base = Base::open(&place.store().join("rows.redb")).unwrap();
    let row = key::counter("batch");
    base.commit([(row.as_slice(), Some(&(batch + 1).to_be_bytes()[..]))].into_iter()).unwrap();
    drop(base);
    drop(place.open());
}
