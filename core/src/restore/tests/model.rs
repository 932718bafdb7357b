//! Random trees: whatever is in the workspace, after a restore it is what the snapshot held, and after an undo what it was.

use std::collections::BTreeMap;

use proptest::prelude::{Strategy, any, prop, proptest};
use proptest::{prop_assert, prop_assert_eq};

use super::lab::{Ask, Lab, timeless};

#[derive(Debug, Clone)]
enum Thing {
    File(u8, u32),
    Dir,
    Link(u8),
}

fn tree() -> impl Strategy<Value = BTreeMap<String, Thing>> {
    let name = prop::sample::select(vec!["a", "b", "a.b", "c"]);
    let path = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600]);
    let thing = (any::<u8>(), mode, 0..6u8).prop_map(|(byte, mode, kind)| match kind {
        0 => Thing::Dir,
        1 => Thing::Link(byte % 3),
        _ => Thing::File(byte % 3, mode),
    });
    prop::collection::btree_map(path, thing, 0..12)
}

fn build(lab: &Lab, tree: &BTreeMap<String, Thing>) {
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(lab.at("")).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with(".git") {
            continue;
        }
        if path.symlink_metadata().unwrap().is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    for (path, thing) in tree {
        let at = lab.at(path);
        // What does not fit below a file is left out.
        if std::fs::create_dir_all(at.parent().unwrap()).is_err() || at.symlink_metadata().is_ok() {
            continue;
        }
        match thing {
            Thing::Dir => std::fs::create_dir(at).unwrap(),
            Thing::Link(to) => std::os::unix::fs::symlink(format!("nowhere/{to}"), at).unwrap(),
            Thing::File(byte, mode) => {
                std::fs::write(&at, [*byte]).unwrap();
                std::fs::set_permissions(at, std::fs::Permissions::from_mode(*mode)).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]
    #[test]
    fn any_tree_comes_back(then in tree(), now in tree(), native: bool) {
        use ah_plugin_api::Capability;
        let lab = if native {
            Lab::like_git()
        } else {
            Lab::new(&[Capability::AppliesPolicy, Capability::ReadWithoutMount])
        };
        build(&lab, &then);
        let (before, target) = (timeless(&lab.shown()), lab.snapshot());
        build(&lab, &now);
        let after = timeless(&lab.shown());
        let (safety, outcome) = lab.restore(&target, &Ask::default());
        prop_assert_eq!(timeless(&lab.shown()), before.clone());
        let (safety, outcome) = lab.undo(&safety, &outcome);
        prop_assert_eq!(timeless(&lab.shown()), after);
        lab.undo(&safety, &outcome);
        prop_assert_eq!(timeless(&lab.shown()), before);
        prop_assert!(lab.restore(&target, &Ask::default()).1.plan.is_empty());
    }
}
