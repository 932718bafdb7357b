//! What is captured of a workspace and what is not, for providers that apply the policy.

use ah_plugin_api::{
    Capability, CapturePolicy, Context, DiffRequest, ErrorKind, OmitReason, Provider, RelPath, Side, SnapshotRequest,
};

use crate::case::{Case, Check, Need, ensure, refused};
use crate::cases::exact::kind_at;
use crate::fixture::{Fixture, Taken, path};
use crate::tree::Tree;

const NEEDS: &[Need] = &[Need::Has(Capability::AppliesPolicy)];

pub(super) const CASES: &[Case] = &[
    Case {
        id: "policy.ignored",
        clauses: &[
            "Matched by an ignore rule.",
            "The topmost path that is left out; everything below it is left out with it.",
        ],
        needs: NEEDS,
        run: ignored,
    },
    Case {
        id: "policy.small-ignored",
        clauses: &[
            "Ignored files outside ignored directories are captured up to this size, bytes; 0 captures none.",
            "Matched by an ignore rule when it was captured",
        ],
        needs: NEEDS,
        run: small_ignored,
    },
    Case { id: "policy.ignore-rules", clauses: &["Matched by an ignore rule."], needs: NEEDS, run: ignore_rules },
    Case {
        id: "policy.ignore-rules-change",
        clauses: &["Matched by an ignore rule."],
        needs: NEEDS,
        run: ignore_rules_change,
    },
    Case {
        id: "policy.global-ignore",
        clauses: &[
            "Contents of the user's global ignore file, in `.gitignore` syntax; the weakest of the ignore rules.",
        ],
        needs: NEEDS,
        run: global_ignore,
    },
    Case {
        id: "policy.include",
        clauses: &[
            "Patterns in `.gitignore` syntax for ignored things that are captured all the same, up to `max_file_size`.",
        ],
        needs: NEEDS,
        run: include,
    },
    Case {
        id: "policy.exclude",
        clauses: &[
            "Patterns in `.gitignore` syntax for things that are left out although they are not ignored.",
            "Matched by an exclude of the configuration.",
        ],
        needs: NEEDS,
        run: exclude,
    },
    Case { id: "policy.too-large", clauses: &["Larger files are left out, bytes."], needs: NEEDS, run: too_large },
    Case {
        id: "policy.git-dir",
        clauses: &["A `.git` of a nested repository: its files are captured, its database is not."],
        needs: NEEDS,
        run: git_dir,
    },
    Case {
        id: "policy.own-state",
        clauses: &[
            "Directories of `ah`'s own state inside the workspace; left out as [`crate::OmitReason::OwnState`].",
        ],
        needs: NEEDS,
        run: own_state,
    },
    Case {
        id: "policy.max-entries",
        clauses: &["`FailedPrecondition` if the policy's `max_entries` is passed."],
        needs: NEEDS,
        run: max_entries,
    },
    Case {
        id: "policy.diff",
        clauses: &["What of the workspace counts, where a side is the workspace."],
        needs: &[Need::Has(Capability::AppliesPolicy), Need::Has(Capability::Diff)],
        run: diff,
    },
    Case {
        id: "policy.everything-without",
        clauses: &["The capture policy is applied: ignored files stay out. Without it everything is captured."],
        needs: &[Need::Lacks(Capability::AppliesPolicy)],
        run: everything_without,
    },
];

fn with(f: &Fixture, id: &str, change: impl FnOnce(&mut CapturePolicy)) -> SnapshotRequest {
    let mut request = f.request(id);
    change(&mut request.policy);
    request
}

/// What was omitted, in order.
fn omitted(taken: &Taken) -> Vec<(String, OmitReason)> {
    let mut list: Vec<_> = taken.snapshot.omitted.iter().map(|o| (o.path.to_string(), o.reason)).collect();
    list.sort();
    list
}

fn expect(taken: &Taken, want: &[(&str, OmitReason)]) -> Check {
    let mut want: Vec<_> = want.iter().map(|(path, reason)| ((*path).to_owned(), *reason)).collect();
    want.sort();
    ensure!(omitted(taken) == want, "omitted should be {want:?}, is {:?}", omitted(taken));
    Ok(())
}

/// The tree that a view shows.
fn shown(f: &Fixture, taken: &Taken) -> Check<Tree> {
    let view = f.mount(taken, "v", &[])?;
    let tree = Tree::walk(&view.path)?;
    f.unmount(&view)?;
    Ok(tree)
}

const IGNORED: OmitReason = OmitReason::Ignored;

fn ignored(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write(".gitignore", "target/\n*.log\n")?;
    f.ws.write("target/debug/build/out", "x")?;
    f.ws.write("src/target/small", "x")?;
    f.ws.write("big.log", vec![b'l'; 3000])?;
    f.ws.write("src/lib/deep/big.log", vec![b'l'; 3000])?;
    let request = with(f, "a", |policy| policy.max_ignored_size = 1000);
    let taken = f.take_with(&request, &[IGNORED])?;
    expect(
        &taken,
        &[("target", IGNORED), ("src/target", IGNORED), ("big.log", IGNORED), ("src/lib/deep/big.log", IGNORED)],
    )?;
    f.shows(&taken)?;
    // Again, from whatever was remembered.
    let again = f.take_with(&SnapshotRequest { id: crate::fixture::id_of("b"), ..request }, &[IGNORED])?;
    ensure!(omitted(&again) == omitted(&taken), "an unchanged workspace omits {:?} now", omitted(&again));
    let stat = f.stat(&again.reference())?;
    ensure!(stat.omitted == again.snapshot.omitted, "stat gives other omissions than snapshot");
    f.shows(&again)
}

fn small_ignored(f: &Fixture) -> Check {
    f.ws.write(".gitignore", "*.env\nsecrets/\n")?;
    f.ws.write("local.env", "KEY=1\n")?;
    f.ws.write("sub/other.env", "KEY=2\n")?;
    f.ws.write("exact.env", vec![b'x'; 100])?;
    f.ws.write("large.env", vec![b'x'; 101])?;
    f.ws.write("secrets/inside.env", "in an ignored directory")?;
    f.ws.write("plain", "x")?;
    let taken = f.take_with(&with(f, "a", |policy| policy.max_ignored_size = 100), &[IGNORED])?;
    expect(&taken, &[("large.env", IGNORED), ("secrets", IGNORED)])?;
    f.shows(&taken)?;
    if f.has(Capability::ReadWithoutMount) {
        for (name, ignored) in [("local.env", true), ("sub/other.env", true), ("exact.env", true), ("plain", false)] {
            let entry = f.lookup(&[&taken], &path(name))?.remove(0);
            let flag = entry.map(|entry| entry.ignored);
            ensure!(flag == Some(ignored), "the ignored flag of {name} is {flag:?}");
        }
    }
    let none = f.take_with(&with(f, "b", |policy| policy.max_ignored_size = 0), &[IGNORED])?;
    let names = ["local.env", "sub/other.env", "exact.env", "large.env", "secrets"];
    expect(&none, &names.map(|name| (name, IGNORED)))?;
    f.shows(&none)?;
    f.shows(&taken)
}

fn ignore_rules(f: &Fixture) -> Check {
    let rules = "# comment\n\n*.o\n!keep.o\n/rooted\ndir-only/\ndeep/**/leaf\n\\#literal\ntrailing\\ \n[ab].x\n**/anywhere\nwild?\n";
    f.ws.write(".gitignore", rules)?;
    // A deeper file overrides.
    f.ws.write("sub/.gitignore", "!special.o\nlocal\n")?;
    let ignored = [
        "a.o",
        "sub/b.o",
        "rooted",
        "sub/dir-only",
        "deep/leaf",
        "deep/x/y/leaf",
        "#literal",
        "trailing ",
        "a.x",
        "anywhere",
        "sub/s/anywhere",
        "wild1",
        "sub/local",
    ];
    let kept = [
        "keep.o",
        "sub/keep.o",
        "sub/special.o",
        "sub/rooted",
        "dir-only",
        "deep/x/other",
        "c.x",
        "wild",
        "wild12",
        "local",
        "# comment",
    ];
    for name in ignored.iter().chain(&kept) {
        if *name == "sub/dir-only" {
            f.ws.write("sub/dir-only/in", "x")?;
        } else {
            f.ws.write(name, "x")?;
        }
    }
    let taken = f.take_with(&with(f, "a", |policy| policy.max_ignored_size = 0), &[IGNORED])?;
    expect(&taken, &ignored.map(|name| (name, IGNORED)))?;
    f.shows(&taken)
}

/// The rules change, the files do not.
fn ignore_rules_change(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("out/file", "x")?;
    let take = |id: &str| f.take_with(&with(f, id, |policy| policy.max_ignored_size = 0), &[IGNORED]);
    let steps: [(&str, Option<&str>, &[&str]); 5] = [
        ("a", None, &[]),
        ("b", Some("out/\n"), &["out"]),
        ("c", Some("out/file\nempty\n"), &["empty", "out/file"]),
        ("d", Some("!out\n"), &[]),
        ("e", None, &[]),
    ];
    for (id, rules, want) in steps {
        match rules {
            Some(rules) => f.ws.write(".gitignore", rules)?,
            None if f.ws.exists(".gitignore") => f.ws.remove(".gitignore")?,
            None => {}
        }
        let taken = take(id)?;
        expect(&taken, &want.iter().map(|name| (*name, IGNORED)).collect::<Vec<_>>())?;
        f.shows(&taken)?;
    }
    Ok(())
}

fn global_ignore(f: &Fixture) -> Check {
    f.ws.write(".gitignore", "!kept.tmp\n")?;
    f.ws.write("gone.tmp", "x")?;
    f.ws.write("kept.tmp", "x")?;
    f.ws.write("plain", "x")?;
    let request = |id: &str, rules: &str| {
        with(f, id, |policy| {
            policy.global_ignore = rules.as_bytes().to_vec();
            policy.max_ignored_size = 0;
        })
    };
    let taken = f.take_with(&request("a", "*.tmp\n"), &[IGNORED])?;
    expect(&taken, &[("gone.tmp", IGNORED)])?;
    f.shows(&taken)?;
    // Another rule, no file touched.
    let other = f.take_with(&request("b", "plain\n"), &[IGNORED])?;
    expect(&other, &[("plain", IGNORED)])?;
    f.shows(&other)
}

fn include(f: &Fixture) -> Check {
    f.ws.write(".gitignore", "*.bin\ndata/\n")?;
    f.ws.write("model.bin", vec![b'm'; 5000])?;
    f.ws.write("other.bin", vec![b'o'; 5000])?;
    f.ws.write("huge.bin", vec![b'h'; 20_000])?;
    f.ws.write("data/set/file", vec![b'd'; 5000])?;
    let request = |id: &str, include: &[&str]| {
        with(f, id, |policy| {
            policy.include = include.iter().map(|&pattern| pattern.to_owned()).collect();
            policy.max_ignored_size = 100;
            policy.max_file_size = 10_000;
        })
    };
    let reasons = [IGNORED, OmitReason::TooLarge];
    let taken = f.take_with(&request("a", &["model.bin", "huge.bin", "data/"]), &reasons)?;
    let tree = shown(f, &taken)?;
    for name in ["model.bin", "data/set/file"] {
        ensure!(kind_at(&tree, &path(name)).is_some(), "{name} is included, but was not captured");
    }
    for name in ["other.bin", "huge.bin"] {
        ensure!(kind_at(&tree, &path(name)).is_none(), "{name} was captured");
        ensure!(omitted(&taken).iter().any(|(path, _)| path == name), "{name} is not in omitted");
    }
    f.shows(&taken)?;
    let without = f.take_with(&request("b", &[]), &reasons)?;
    let names: Vec<_> = omitted(&without).into_iter().map(|(path, _)| path).collect();
    ensure!(names == ["data", "huge.bin", "model.bin", "other.bin"], "without include, omitted are {names:?}");
    f.shows(&without)
}

fn exclude(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("videos/one.mp4", "x")?;
    let exclude = |policy: &mut CapturePolicy| policy.exclude = vec!["*.mp4".into(), "/src/lib/".into()];
    let taken = f.take_with(&with(f, "a", exclude), &[OmitReason::Excluded])?;
    expect(&taken, &[("src/lib", OmitReason::Excluded), ("videos/one.mp4", OmitReason::Excluded)])?;
    f.shows(&taken)?;
    f.shows(&f.take("b")?)
}

fn too_large(f: &Fixture) -> Check {
    f.ws.write("at", vec![b'x'; 1000])?;
    f.ws.write("sub/over", vec![b'x'; 1001])?;
    let taken = f.take_with(&with(f, "a", |policy| policy.max_file_size = 1000), &[OmitReason::TooLarge])?;
    expect(&taken, &[("sub/over", OmitReason::TooLarge)])?;
    f.shows(&taken)?;
    f.shows(&f.take("b")?)
}

fn git_dir(f: &Fixture) -> Check {
    f.ws.write("vendor/lib/.git/HEAD", "ref: refs/heads/main\n")?;
    f.ws.write("vendor/lib/.git/objects/x", "x")?;
    f.ws.write("vendor/lib/source", "captured")?;
    f.ws.write("module/.git", "gitdir: ../elsewhere\n")?;
    f.ws.write("module/source", "captured")?;
    let taken = f.take("a")?;
    expect(&taken, &[("module/.git", OmitReason::GitDir), ("vendor/lib/.git", OmitReason::GitDir)])?;
    f.shows(&taken)
}

fn own_state(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("state/of/ah/file", "x")?;
    f.ws.write("state/other", "x")?;
    let own = |policy: &mut CapturePolicy| policy.own_state = vec![path("state/of/ah")];
    let taken = f.take_with(&with(f, "a", own), &[OmitReason::OwnState])?;
    expect(&taken, &[("state/of/ah", OmitReason::OwnState)])?;
    f.shows(&taken)
}

fn max_entries(f: &Fixture) -> Check {
    f.ws.sample()?;
    let before = f.take("before")?;
    for i in 0..200 {
        f.ws.write(format!("many/{i}"), "x")?;
    }
    let request = with(f, "a", |policy| policy.max_entries = 100);
    let refusal = f.provider().snapshot(&f.place(), &request, &Context::quiet());
    refused(refusal, &[ErrorKind::FailedPrecondition], "a snapshot of more entries than allowed")?;
    ensure!(f.ids()? == ["before"], "the list is {:?} after a refusal", f.ids()?);
    let request = SnapshotRequest { policy: CapturePolicy::default(), ..request };
    let taken = f.take_with(&request, &[])?;
    f.shows(&taken)?;
    f.shows(&before)
}

fn diff(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write(".gitignore", "target/\n*.log\n")?;
    let policy = CapturePolicy { max_ignored_size: 0, ..CapturePolicy::default() };
    let request = with(f, "a", |of_request| of_request.clone_from(&policy));
    let taken = f.take_with(&request, &[])?;
    f.ws.write("target/out", "x")?;
    f.ws.write("new.log", "x")?;
    f.ws.write("new.rs", "x")?;
    let request = DiffRequest {
        from: Side::Snapshot(taken.reference()),
        to: Side::Workspace,
        paths: Vec::new(),
        times: false,
        policy,
    };
    let changes = f.provider().diff(&f.place(), &request, &Context::quiet())?.changes;
    let paths: Vec<RelPath> = changes.into_iter().map(|change| change.path).collect();
    ensure!(paths == [path("new.rs")], "one file was added that counts, listed are {paths:?}");
    Ok(())
}

fn everything_without(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write(".gitignore", "*\n")?;
    f.ws.write("ignored/file", "x")?;
    f.ws.write("excluded", "x")?;
    let request = with(f, "a", |policy| {
        policy.exclude = vec!["excluded".to_owned()];
        policy.max_ignored_size = 0;
    });
    f.shows(&f.take_with(&request, &[])?)
}
