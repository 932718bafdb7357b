//! An `AH_HOME` that was moved, or of which a part was removed by hand.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::path::{Path, PathBuf};

use support::{Ran, World};

/// Runs `ah agent fs …` by the `AH_HOME` there.
fn by(world: &World, home: &Path, arguments: &[&str]) -> Ran {
    Ran::of(world.command(["agent", "fs"].iter().chain(arguments)).env("AH_HOME", home))
}

#[test]
fn one_that_was_moved_has_its_branches_and_views_where_they_are_now() {
    for world in [World::new(), World::on_git()] {
        world.write("f", "one");
        let snapshot = world.fs(["snapshot"]);
        for name in ["b", "c", "d"] {
            world.fs(["branch", "@", "--name", name]);
        }
        let view = PathBuf::from(world.fs(["seek", &snapshot]));
        let homes = ["state", "moved", "again"].map(|name| world.path(name));
        for (from, to, branch) in [(0, 1, "b"), (1, 2, "c")] {
            std::fs::rename(&homes[from], &homes[to]).unwrap();
            let run = |arguments: &[&str]| {
                let ran = by(&world, &homes[to], arguments);
                assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
                ran.stdout
            };
            let place = homes[to].join("branches").join(branch);
            assert!(run(&["branches"]).contains(place.to_str().unwrap()));
            let cleared = by(&world, &homes[to], &["gc"]);
            let told = |word: &str| cleared.stdout.contains(word) || cleared.stderr.contains(word);
            let former = homes[from].to_str().unwrap();
            assert!(cleared.code == 0 && !["view", "clone", former].into_iter().any(told), "{cleared:?}");
            let view = homes[to].join(view.strip_prefix(&homes[0]).unwrap());
            assert_eq!(std::fs::read_to_string(view.join("f")).unwrap(), "one");
            assert!(run(&["status"]).contains(view.to_str().unwrap()));
            assert_eq!(run(&["exec", branch, "--", "cat", "f"]), "one");
            // Worked in without a look at it before, it is the same.
            let inside = Ran::of(
                world.command(["-C", place.to_str().unwrap(), "agent", "fs", "diff"]).env("AH_HOME", &homes[to]),
            );
            assert!(inside.code == 0 && inside.stdout.is_empty(), "{inside:?}");
            std::fs::write(place.join("new"), "").unwrap();
            let held = by(&world, &homes[to], &["rm", branch]);
            assert!(held.code == 4 && held.stderr.contains("new"), "{held:?}");
            std::fs::remove_file(place.join("new")).unwrap();
            run(&["rm", branch]);
            assert!(!place.exists());
        }
        let last = &homes[2];
        // By force too, without anything before that.
        assert_eq!(by(&world, last, &["rm", "--force", "d"]).code, 0);
        assert!(!last.join("branches/d").exists());
        let view = last.join(view.strip_prefix(&homes[0]).unwrap());
        assert_eq!(by(&world, last, &["release", view.to_str().unwrap()]).code, 0);
        assert!(!by(&world, last, &["status"]).stdout.contains(view.to_str().unwrap()));
        std::fs::rename(last, &homes[0]).unwrap();
    }
}

#[test]
fn a_view_of_a_workspace_whose_folder_was_removed_by_hand_is_named_and_goes_once_it_shows_nothing() {
    let world = World::on_git();
    world.write("f", "one");
    world.fs(["snapshot"]);
    let views =
        [&[][..], &["--", "f"], &["--", "f"]].map(|paths| PathBuf::from(world.fs([&["seek", "@"], paths].concat())));
    world.wait_for_background();
    let workspaces = world.path("state/workspaces");
    let folder = std::fs::read_dir(&workspaces).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_dir_all(folder).unwrap();
    let other = world.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("f"), "other").unwrap();
    let in_other = |words: &[&str]| {
        Ran::of(&mut world.command(["-C", other.to_str().unwrap(), "agent", "fs"].iter().chain(words)))
    };
    assert_eq!(in_other(&["snapshot"]).code, 0);
    let leases = || std::fs::read_dir(world.path("state/leases")).unwrap().count();
    let ran = in_other(&["gc"]);
    for view in &views {
        let release = format!("`ah agent fs release {}`", view.display());
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(&release), "{ran:?}");
        assert_eq!(std::fs::read_to_string(view.join("f")).unwrap(), "one");
    }
    // As a restart leaves them, or who removes that by hand, too.
    for (view, what) in views.iter().zip(["\"$0\"", "\"$0\"/f"]) {
        let script = format!("umount \"$0\" 2>/dev/null; chmod -R u+w \"$0\" && rm -r {what}");
        assert!(std::process::Command::new("sh").arg("-c").arg(script).arg(view).status().unwrap().success());
    }
    let ran = in_other(&["gc"]);
    for view in &views[..2] {
        let given_back = format!("gave back the view {}", view.file_name().unwrap().to_str().unwrap());
        assert!(ran.stdout.contains(&given_back) && !view.exists(), "{ran:?}");
    }
    assert_eq!(leases(), 1);
    assert_eq!(in_other(&["release", views[2].to_str().unwrap()]).code, 0);
    assert_eq!((leases(), views[2].exists()), (0, false));
    let ran = in_other(&["gc"]);
    assert!(ran.code == 0 && !format!("{}{}", ran.stdout, ran.stderr).contains("view"), "{ran:?}");
}
