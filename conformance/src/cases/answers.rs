//! What a provider says of itself, and what it gives back of what it was given.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{
    Capability, CapturePolicy, Context, ConvertRequest, DestroyRequest, DiffRequest, Durability, ErrorKind, Place,
    ProbeRequest, Provider, Reference, Side, SnapshotRef, Timestamp, UsageRequest,
};

use crate::case::{Case, Check, Need, Trouble, ensure, refused};
use crate::editor::Editor;
use crate::fixture::{Fixture, Taken};
use crate::tree::{Modes, Tree};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "answers.describe",
        clauses: &["Says what this is.", "the same answer every time."],
        needs: &[],
        run: describe,
    },
    Case {
        id: "answers.probe",
        clauses: &[
            "Says whether this workspace can be served, by this user, and why or why not.",
            "Changes nothing.",
            "An unusable workspace is an answer, not an error.",
        ],
        needs: &[],
        run: probe,
    },
    Case {
        id: "answers.needs-workspace",
        clauses: &[
            "`InvalidArgument` for a place without what the method needs",
            "Captures the workspace. Needs a workspace.",
        ],
        needs: &[],
        run: needs_workspace,
    },
    Case {
        id: "answers.given-back",
        clauses: &[
            "The answer bears the id, time, label and attributes of the request.",
            "One snapshot, with everything known of it.",
            "Kept with the snapshot and given back as they are.",
        ],
        needs: &[],
        run: given_back,
    },
    Case {
        id: "answers.list",
        clauses: &[
            "All complete snapshots of the store, oldest first, without `omitted`.",
            "stable for the thing's life, and no other's in its store",
        ],
        needs: &[],
        run: list,
    },
    Case {
        id: "answers.duplicate-id",
        clauses: &["`AlreadyExists` if the store has a snapshot of that id."],
        needs: &[],
        run: duplicate_id,
    },
    Case {
        id: "answers.not-found",
        clauses: &["`NotFound` for a reference that names nothing", "`NotFound` if there is none of that reference."],
        needs: &[],
        run: not_found,
    },
    Case {
        id: "answers.hostile-references",
        clauses: &[
            "`NotFound` for a reference that names nothing",
            "It writes to the store, and in the target what `mount` and `clone_snapshot` make.",
        ],
        needs: &[],
        run: hostile_references,
    },
    Case {
        id: "answers.destroy",
        clauses: &[
            "Removes a snapshot or a clone. What is gone already is success.",
            "From the moment it returns, `list` does not show it",
        ],
        needs: &[],
        run: destroy,
    },
    Case {
        id: "answers.stores-apart",
        clauses: &["the provider's own folder for that workspace.", "unique within a store"],
        needs: &[],
        run: stores_apart,
    },
    Case {
        id: "answers.sync",
        clauses: &["Does nothing to one that does already.", "`NotFound` if there is none of that reference."],
        needs: &[],
        run: sync,
    },
    Case {
        id: "answers.always-durable",
        clauses: &["`snapshot` commits before it returns, so that an `instant` snapshot is `durable`."],
        needs: &[Need::Has(Capability::AlwaysDurable)],
        run: always_durable,
    },
    Case {
        id: "answers.entries",
        clauses: &[
            "Number of captured entries, directories included, where known.",
            "Equal for two snapshots of one store with equal trees, and for no others, where that is known cheaply.",
            "names, kinds, contents, symlink targets, permission bits and modification times, those of directories too",
        ],
        needs: &[],
        run: entries,
    },
    Case {
        id: "answers.usage",
        clauses: &[
            "Space in use by the store, or by snapshots of it taken together: those that are not there hold nothing.",
        ],
        needs: &[Need::Has(Capability::Usage)],
        run: usage,
    },
    Case {
        id: "answers.usage-of-several",
        clauses: &[
            "Space in use by the store, or by snapshots of it taken together: those that are not there hold nothing.",
            "Bytes that removing these snapshots and no others would free, rather a little less than more",
        ],
        needs: &[Need::Has(Capability::Usage)],
        run: usage_of_several,
    },
    Case {
        id: "answers.unsupported",
        clauses: &[
            "A method whose default says so may be left out; it answers `Unsupported`",
            "`Unsupported` (the default) without [`crate::Capability::Clone`].",
            "`Unsupported` (the default) without [`crate::Capability::Diff`]: the caller walks both sides.",
            "`Unsupported` (the default) without [`crate::Capability::ReadWithoutMount`].",
            "`Unsupported` (the default) without [`crate::Capability::Usage`].",
            "`Unsupported` (the default) without [`crate::Capability::Convert`].",
        ],
        needs: &[],
        run: unsupported,
    },
];

fn describe(f: &Fixture) -> Check {
    let first = f.provider().describe();
    ensure!(!first.version.trim().is_empty(), "the version is empty");
    ensure!(!first.capabilities.contains(&Capability::Unknown), "a capability is called unknown");
    f.take("a")?;
    ensure!(f.provider().describe() == first, "describe answers otherwise after a snapshot");
    ensure!(f.another()?.provider().describe() == first, "another instance describes itself otherwise");
    Ok(())
}

fn probe(f: &Fixture) -> Check {
    f.ws.sample()?;
    let before = Tree::walk(f.store().path())?;
    let probe = f.provider().probe(&f.place(), &ProbeRequest::default(), &Context::quiet())?;
    ensure!(probe.usable, "the workspace was usable when it was empty, and is not now: {}", probe.reason);
    ensure!(!probe.modes.is_empty(), "it serves no mode of work");
    for &mode in ah_plugin_api::Mode::ALL {
        let request = ProbeRequest { mode: Some(mode), ..ProbeRequest::default() };
        let answer = f.provider().probe(&f.place(), &request, &Context::quiet())?;
        ensure!(
            answer.usable == probe.modes.contains(&mode),
            "usable for {mode}: {}, but the modes are {:?}",
            answer.usable,
            probe.modes
        );
    }
    let changed = before.differences(&Tree::walk(f.store().path())?, Modes::Exact);
    ensure!(changed.is_empty(), "probe changed the store: {}", changed.join("; "));
    Ok(())
}

fn needs_workspace(f: &Fixture) -> Check {
    let place = Place::new(f.store()).with_target(f.folder());
    let cx = Context::quiet();
    refused(
        f.provider().snapshot(&place, &f.request("a"), &cx),
        &[ErrorKind::InvalidArgument],
        "a snapshot without a workspace",
    )?;
    refused(
        f.provider().probe(&place, &ProbeRequest::default(), &cx),
        &[ErrorKind::InvalidArgument],
        "a probe without a workspace",
    )?;
    ensure!(f.ids()?.is_empty(), "something was listed after a refused snapshot");
    Ok(())
}

fn given_back(f: &Fixture) -> Check {
    f.ws.sample()?;
    let attributes: BTreeMap<String, String> = [
        ("kind", "manual"),
        ("", "an empty key"),
        ("empty", ""),
        ("a key with blanks = and\nlines", "\u{1f980} \"quoted\" \\ \t"),
        ("../../ah-conformance", "/nonexistent"),
        ("a-key-that-is-longer-than-those-which-ah-itself-gives", "long"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let times = [
        Timestamp { secs: 1_700_000_000, nanos: 999_999_999 },
        Timestamp { secs: -5, nanos: 1 },
        Timestamp { secs: 5_000_000_000, nanos: 0 },
    ];
    let labels = [None, Some("label"), Some("two\nlines \u{1f980} \"'\\ -- \u{0}")];
    let ids = ["a", "0-9-z", "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"];
    for ((id, created), label) in ids.into_iter().zip(times).zip(labels) {
        let mut request = f.request(id);
        request.created = created;
        request.label = label.map(ToOwned::to_owned);
        request.attributes.clone_from(&attributes);
        let answer = f.take_with(&request, &[])?.snapshot;
        let listed = f.list()?.into_iter().find(|snapshot| snapshot.reference == answer.reference);
        let listed = listed.ok_or_else(|| crate::Trouble::Failed(format!("{id} is not listed")))?;
        let stat = f.another()?.stat(&answer.reference)?;
        for (from, got) in [("snapshot", &answer), ("list", &listed), ("stat, by another instance,", &stat)] {
            ensure!(got.id == request.id, "{from} gave the id {} instead of {}", got.id, request.id);
            ensure!(got.created == created, "{from} gave the time {:?} instead of {created:?}", got.created);
            ensure!(got.label == request.label, "{from} gave the label {:?}, not {:?}", got.label, request.label);
            ensure!(got.attributes == attributes, "{from} gave other attributes: {:?}", got.attributes);
            ensure!(got.reference == answer.reference, "{from} gave another reference");
            ensure!(got.omitted_total == answer.omitted_total, "{from} counts other omissions");
            ensure!(got.entries == answer.entries, "{from} counts other entries");
        }
    }
    Ok(())
}

fn list(f: &Fixture) -> Check {
    f.ws.sample()?;
    ensure!(f.ids()?.is_empty(), "a new store lists something");
    // Not in alphabetic order, to see that it is not that.
    let order = ["m", "c", "x", "a"];
    let mut references = BTreeMap::new();
    for id in order {
        f.ws.write("README.md", id)?;
        references.insert(id.to_owned(), f.take(id)?.reference());
    }
    let different: BTreeSet<_> = references.values().collect();
    ensure!(different.len() == order.len(), "the references of {order:?} are {references:?}");
    ensure!(f.ids()? == order, "the order is {:?} instead of {order:?}", f.ids()?);
    let other = f.another()?;
    ensure!(other.ids()? == order, "another instance lists {:?}", other.ids()?);
    for snapshot in other.list()? {
        let id = snapshot.id.to_string();
        ensure!(references.get(&id) == Some(&snapshot.reference), "the reference of {id} is not what it was");
    }
    Ok(())
}

fn duplicate_id(f: &Fixture) -> Check {
    f.ws.sample()?;
    let first = f.take("a")?;
    f.ws.write("later", "later")?;
    let request = f.request("a");
    let again = f.provider().snapshot(&f.place(), &request, &Context::quiet());
    refused(again, &[ErrorKind::AlreadyExists], "a second snapshot of one id")?;
    ensure!(f.ids()? == ["a"], "the list is {:?} afterwards", f.ids()?);
    ensure!(f.stat(&first.reference())? == first.snapshot, "the refused snapshot changed what stat says of the first");
    f.shows(&first)?;
    f.destroy(&first)?;
    // An id is taken while its snapshot is there.
    let second = f.take("a")?;
    f.shows(&second)
}

fn not_found(f: &Fixture) -> Check {
    f.ws.sample()?;
    let gone = f.take("gone")?;
    f.destroy(&gone)?;
    let nothing = Reference::new("no-such-snapshot")?;
    for reference in [&gone.reference(), &nothing] {
        let kinds = [ErrorKind::NotFound];
        refused(f.stat(reference), &kinds, "stat")?;
        let request = SnapshotRef { snapshot: reference.clone() };
        refused(f.provider().sync(&f.place(), &request, &Context::quiet()), &kinds, "sync")?;
        refused(f.try_mount(reference, "v", &[]), &kinds, "mount")?;
        if f.has(Capability::Clone) {
            refused(f.try_clone(reference, "c"), &kinds, "clone_snapshot")?;
        }
        if f.has(Capability::Usage) {
            let request = UsageRequest { snapshots: vec![reference.clone()] };
            let usage = f.provider().usage(&f.place(), &request, &Context::quiet())?;
            ensure!(usage.bytes.unwrap_or(0) == 0, "what is gone holds {usage:?}");
        }
    }
    ensure!(std::fs::read_dir(f.folder().path())?.count() == 0, "something is left in the target folder");
    Ok(())
}

fn hostile_references(f: &Fixture) -> Check {
    f.ws.sample()?;
    let kept = f.take("a")?;
    std::fs::create_dir(f.folder().path().join("ah-conformance-bystander"))?;
    std::fs::write(f.folder().path().join("ah-conformance-bystander/file"), "stays")?;
    let before = Tree::walk(f.folder().path())?;
    let kinds = [ErrorKind::NotFound, ErrorKind::InvalidArgument];
    let outside = f.outside().display().to_string();
    let known = kept.snapshot.reference.as_str();
    for text in [
        "../ah-conformance-outside",
        "../ah-conformance-outside/precious",
        "../../ah-conformance-outside",
        "ah-conformance-bystander",
        outside.as_str(),
        &format!("{known}/../../../ah-conformance-outside"),
        &format!("{known}/."),
        &format!("{known}x"),
        &known[..known.len() - 1],
        &"x".repeat(4096),
        "caf\u{e9} \u{1f980}",
    ] {
        let Ok(reference) = Reference::new(text) else { continue };
        refused(f.stat(&reference), &kinds, &format!("stat of {text:?}"))?;
        refused(f.try_mount(&reference, "v", &[]), &kinds, &format!("mount of {text:?}"))?;
        let place = f.place_without_workspace();
        let cx = Context::quiet();
        for request in [DestroyRequest::Snapshot(reference.clone()), DestroyRequest::Clone(reference.clone())] {
            match f.provider().destroy(&place, &request, &cx) {
                // Nothing is there of that name: gone already.
                Ok(_) => {}
                refusal => refused(refusal, &kinds, &format!("destroy of {text:?}"))?,
            }
        }
        let request = ah_plugin_api::UnmountRequest { view: reference, unused: false };
        match f.provider().unmount(&place, &request, &cx) {
            Ok(_) => {}
            refusal => refused(refusal, &kinds, &format!("unmount of {text:?}"))?,
        }
        let changed = before.differences(&Tree::walk(f.folder().path())?, Modes::Exact);
        ensure!(changed.is_empty(), "with {text:?} the target folder was changed: {}", changed.join("; "));
    }
    f.shows(&kept)
}

fn destroy(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let b = f.take("b")?;
    f.destroy(&a)?;
    ensure!(f.ids()? == ["b"], "after destroying a the list is {:?}", f.ids()?);
    f.destroy(&a)?;
    let other = f.another()?;
    other.destroy(&a)?;
    ensure!(other.ids()? == ["b"], "another instance lists {:?}", other.ids()?);
    other.destroy(&b)?;
    ensure!(f.ids()?.is_empty(), "after destroying all by another instance, the first lists {:?}", f.ids()?);
    refused(f.stat(&b.reference()), &[ErrorKind::NotFound], "stat of what another instance destroyed")
}

fn stores_apart(f: &Fixture) -> Check {
    f.ws.sample()?;
    let here = f.take("a")?;
    std::fs::create_dir(f.beside("other-store"))?;
    let store = ah_plugin_api::Dir::open(f.beside("other-store"))?;
    let place = Place::new(&store).with_workspace(f.workspace()).with_target(f.folder());
    let cx = Context::quiet();
    let list = f.provider().list(&place, &Default::default(), &cx)?;
    ensure!(list.is_empty(), "a new store lists the snapshots of another one");
    f.ws.write("README.md", "other")?;
    let there = f.provider().snapshot(&place, &f.request("a"), &cx)?;
    f.provider().destroy(&place, &DestroyRequest::Snapshot(there.reference), &cx)?;
    ensure!(f.ids()? == ["a"], "the list of one store changed with another: {:?}", f.ids()?);
    f.shows(&here)
}

fn sync(f: &Fixture) -> Check {
    f.ws.sample()?;
    let mut request = f.request("durable");
    request.durability = Durability::Durable;
    let durable = f.take_with(&request, &[])?;
    ensure!(durable.snapshot.durability == Durability::Durable, "a durable snapshot was asked for and not given");
    let instant = f.take("instant")?;
    let cx = Context::quiet();
    for taken in [&durable, &instant, &instant] {
        let request = SnapshotRef { snapshot: taken.reference() };
        f.provider().sync(&f.place_without_workspace(), &request, &cx)?;
        let stat = f.another()?.stat(&taken.reference())?;
        ensure!(stat.durability == Durability::Durable, "{} is not durable after sync", taken.snapshot.id);
    }
    let request = SnapshotRef { snapshot: Reference::new("no-such-snapshot")? };
    let sync = f.provider().sync(&f.place_without_workspace(), &request, &cx);
    refused(sync, &[ErrorKind::NotFound], "sync of what is not there")
}

fn always_durable(f: &Fixture) -> Check {
    f.ws.sample()?;
    let instant = f.take("instant")?.snapshot;
    ensure!(
        instant.durability == Durability::Durable,
        "the provider is always durable, but an instant snapshot is {}",
        instant.durability
    );
    let stat = f.another()?.stat(&instant.reference)?;
    ensure!(stat.durability == Durability::Durable, "a snapshot that was durable is {} later", stat.durability);
    Ok(())
}

fn entries(f: &Fixture) -> Check {
    type Write = fn(&Editor) -> std::io::Result<()>;
    f.ws.sample()?;
    let a = f.take("a")?;
    let same = f.take("same")?;
    if let Some(entries) = a.snapshot.entries {
        // The root is what holds the entries.
        let real = f.expected(&a).0.len() as u64 - 1;
        ensure!(entries == real, "{entries} entries are counted, there are {real}");
    }
    if let (Some(a), Some(same)) = (&a.snapshot.tree, &same.snapshot.tree) {
        ensure!(a == same, "nothing changed between two snapshots, but their trees are {a:?} and {same:?}");
    }
    // Each changes that alone: the directories around it have the times that they had.
    let changes: [(&str, Write); 9] = [
        ("the root's mode", |ws| ws.chmod("", 0o700)),
        ("a file's contents", |ws| ws.write("README.md", "other\n")),
        ("a file's mode", |ws| ws.chmod("README.md", 0o600)),
        ("a file's time", |ws| ws.mtime("README.md", Timestamp { secs: 1, nanos: 1 })),
        ("a nanosecond of a file's time", |ws| ws.mtime("README.md", Timestamp { secs: 1, nanos: 2 })),
        ("a directory's mode", |ws| ws.chmod("src/lib", 0o700)),
        ("a directory's time", |ws| ws.mtime("src/lib", Timestamp { secs: 1, nanos: 1 })),
        ("an empty directory", |ws| {
            let time = ws.mtime_of("src")?;
            ws.mkdir("src/new")?;
            ws.mtime("src", time)
        }),
        ("a symlink's target", |ws| {
            let (time, root) = (ws.mtime_of("to-file")?, ws.mtime_of("")?);
            ws.remove("to-file")?;
            ws.symlink("src/niam.rs", "to-file")?;
            ws.mtime("to-file", time)?;
            ws.mtime("", root)
        }),
    ];
    let mut last = same;
    for (at, (what, change)) in changes.into_iter().enumerate() {
        change(&f.ws)?;
        let now = f.take(&format!("changed-{at}"))?;
        if let (Some(before), Some(after)) = (&last.snapshot.tree, &now.snapshot.tree) {
            ensure!(before != after, "two trees that differ in {what} are both told as {before:?}");
        }
        last = now;
    }
    Ok(())
}

/// So many MiB that are not to be compressed, nor to be shared with those of another start.
fn noise(start: u64, mib: usize) -> Vec<u8> {
    let mut state = start;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[7]
    };
    std::iter::repeat_with(byte).take(mib << 20).collect()
}

/// What snapshots hold, or the whole store.
fn usage_of(f: &Fixture, taken: &[&Taken]) -> Check<Option<u64>> {
    let request = UsageRequest { snapshots: taken.iter().map(|taken| taken.reference()).collect() };
    Ok(f.provider().usage(&f.place_without_workspace(), &request, &Context::quiet())?.bytes)
}

fn usage(f: &Fixture) -> Check {
    let of = |taken: &[&Taken]| usage_of(f, taken);
    let empty = of(&[])?;
    f.ws.write("noise", noise(1, 1))?;
    let (a, same) = (f.take("a")?, f.take("same")?);
    f.ws.remove("noise")?;
    let half = 1 << 19;
    // With it on disk that the noise is gone. Where a filesystem in user space hears behind a removal that nobody has the file open any more, a
    // snapshot from before that holds it, too.
    for turn in 0..20 {
        let b = f.take(&format!("b{turn}"))?;
        if a.snapshot.pins.is_some() || of(&[&a, &same])?.is_none_or(|both| both >= half) {
            break;
        }
        f.destroy(&b)?;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (one, both) = (of(&[&a])?, of(&[&a, &same, &a])?);
    ensure!(one.is_some() && both.is_some(), "what snapshots of a sound store hold is not told");
    ensure!(both.zip(one).is_none_or(|(both, one)| both >= one), "more would free less: {both:?} and {one:?}");
    // Where a snapshot is of more than the workspace, others may hold the same.
    if a.snapshot.pins.is_none() {
        let full = of(&[])?;
        ensure!(full.is_some(), "what a sound store takes is not told");
        let more = full.zip(empty).map(|(full, empty)| full.saturating_sub(empty));
        ensure!(more.is_none_or(|more| more >= half), "a MiB of noise takes {more:?} bytes");
        ensure!(both.is_none_or(|both| both >= half), "two hold a MiB of noise, and that would free {both:?} bytes");
        ensure!(both.is_none_or(|both| both < 3 << 20), "what two share counts twice: {both:?}");
        f.destroy(&a)?;
        let left = of(&[&a, &same])?;
        ensure!(left.is_none_or(|left| left >= half), "one alone holds a MiB of noise, and that would free {left:?}");
    }
    Ok(())
}

/// Two that hold nothing in common.
fn usage_of_several(f: &Fixture) -> Check {
    const HALF: u64 = 1 << 19;
    f.ws.sample()?;
    f.ws.write("noise", noise(1, 1))?;
    let small = f.take("small")?;
    f.ws.remove("noise")?;
    f.ws.write("other-noise", noise(2, 3))?;
    let large = f.take("large")?;
    f.ws.remove("other-noise")?;
    // As in `usage`: a snapshot that is taken before a removal is heard of holds what was removed, too.
    for turn in 0..20 {
        let after = f.take(&format!("after-{turn}"))?;
        if small.snapshot.pins.is_some() || usage_of(f, &[&small, &large])?.is_none_or(|both| both >= 7 * HALF) {
            break;
        }
        f.destroy(&after)?;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let told = [usage_of(f, &[&small])?, usage_of(f, &[&large])?, usage_of(f, &[&large, &small])?];
    let [Some(one), Some(other), Some(both)] = told else {
        return Err(Trouble::Failed(format!("what snapshots of a sound store hold is not told: {told:?}")));
    };
    // Where a snapshot is of more than the workspace, others may hold the same.
    if small.snapshot.pins.is_none() {
        for (what, bytes, mib) in [("one", one, 1), ("the other", other, 3), ("both", both, 4)] {
            let (least, most) = ((2 * mib - 1) * HALF, (2 * mib + 2) * HALF);
            ensure!(
                (least..most).contains(&bytes),
                "{what} held {mib} MiB of noise, and that would free {bytes} bytes"
            );
        }
    }
    Ok(())
}

fn unsupported(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let kinds = [ErrorKind::Unsupported];
    let reference = taken.reference();
    if !f.has(Capability::Clone) {
        refused(f.try_clone(&reference, "c"), &kinds, "clone_snapshot without its capability")?;
    }
    if !f.has(Capability::ReadWithoutMount) {
        let root = ah_plugin_api::RelPath::root();
        refused(f.read_dir(&reference, &root), &kinds, "read_dir without its capability")?;
        refused(f.read(&reference, &crate::fixture::path("README.md"))?, &kinds, "read without its capability")?;
        refused(f.lookup(&[&taken], &root), &kinds, "lookup without its capability")?;
    }
    if !f.has(Capability::Usage) {
        let usage = f.provider().usage(&f.place(), &UsageRequest::default(), &Context::quiet());
        refused(usage, &kinds, "usage without its capability")?;
    }
    if !f.has(Capability::Convert) {
        let convert = f.provider().convert(&f.place(), &ConvertRequest::default(), &Context::quiet());
        refused(convert, &kinds, "convert without its capability")?;
    }
    if !f.has(Capability::Diff) {
        let (from, to) = (Side::Snapshot(reference.clone()), Side::Snapshot(reference));
        let request = DiffRequest { from, to, paths: Vec::new(), times: false, policy: CapturePolicy::default() };
        let diff = f.provider().diff(&f.place(), &request, &Context::quiet());
        refused(diff, &kinds, "diff without its capability")?;
    }
    Ok(())
}
