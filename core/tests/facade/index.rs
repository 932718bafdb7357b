//! The cache of all workspaces, where it says what is not so.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use ah_core::Access;

use crate::lab::Lab;

fn index(lab: &Lab) -> PathBuf {
    lab.settings.home.join("index.json")
}

/// Has the index say of a workspace that there is only its folder.
fn hide(lab: &Lab, id: &str) {
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(index(lab)).unwrap()).unwrap();
    let all = value["workspaces"].as_array_mut().unwrap();
    let before = all.len();
    all.retain(|record| record["id"] != id);
    assert_eq!(all.len() + 1, before);
    value["empty"] = serde_json::json!([id]);
    fs::write(index(lab), value.to_string()).unwrap();
}

#[test]
fn one_that_was_registered_while_the_index_was_written_is_found() {
    let lab = Lab::new();
    let own = lab.open().id().clone();
    let around = lab.engine().workspace(&lab.top, Access::Create).unwrap();
    assert_eq!(around.root(), lab.top);
    let found = || lab.engine().workspace(&lab.path(), Access::Existing).unwrap().id().clone();
    assert_eq!(found(), own);
    // As one writes it that had looked into the folder just before the record was there.
    hide(&lab, own.as_str());
    assert_eq!(found(), own);
    let written = fs::read_to_string(index(&lab)).unwrap();
    assert!(written.contains(&format!("\"id\": \"{own}\"")), "{written}");
}

#[test]
fn folders_without_a_record_that_can_be_read_do_not_have_it_written_each_time() {
    let lab = Lab::new();
    lab.open();
    let folders = ["kkkkkkkkkkkk", "llllllllllll"].map(|id| lab.settings.home.join("workspaces").join(id));
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    fs::write(folders[1].join("workspace.json"), "damaged").unwrap();
    lab.open();
    let written = || fs::metadata(index(&lab)).unwrap().ino();
    let before = written();
    lab.open();
    assert_eq!(written(), before);
}
