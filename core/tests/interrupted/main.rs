//! Every durable step of core fails, or is the last thing that its process does, one after the other.
//!
//! A kill is a panic that is caught outside: nothing after it runs but destructors. (Real kills of the real binary are the command
//! line's tests.) After each, what is listed can be read, and after a gc nothing unlisted is left.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../facade/lab.rs"]
#[allow(dead_code)]
mod lab;
#[path = "../facade/talk.rs"]
mod talk;

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ah_core::{
    Access, BranchOptions, BranchState, ConversationReport, EditOptions, Engine, Error, ErrorKind, EventBody,
    GcOptions, MomentKind, NewMoment, PruneOptions, RelPath, Release, RestoreOptions, RmOptions, SeekOptions,
    SessionName, SnapshotFilter, SnapshotKind, SnapshotOptions, TimelineFilter, UndoOptions, crash,
};
use lab::{Lab, Stop};
use std::os::fd::AsFd;
use talk::Talk;

/// What happens at the step of a number, counted down.
#[derive(Clone, Copy, PartialEq)]
enum Plan {
    Nothing,
    Fail(u64),
    /// And so do all that come after it.
    FailFrom(u64),
    Die(u64),
    /// Each step of that name.
    FailAt(&'static str),
}

static PLAN: Mutex<Plan> = Mutex::new(Plan::Nothing);

/// How many rounds left a restore for a person to decide about.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// Whether the moment was added whose timeline is held.
static ADDED: AtomicBool = AtomicBool::new(false);

/// The name of the step that failed last.
static FAILED: Mutex<String> = Mutex::new(String::new());

/// Names of the steps that were come by.
static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn hook(name: &str) -> io::Result<()> {
    SEEN.lock().unwrap().insert(name.to_owned());
    let mut plan = PLAN.lock().unwrap();
    match *plan {
        Plan::Nothing => Ok(()),
        Plan::Fail(0) => {
            *plan = Plan::Nothing;
            name.clone_into(&mut FAILED.lock().unwrap());
            Err(io::Error::from_raw_os_error(28))
        }
        Plan::FailFrom(0) => Err(io::Error::from_raw_os_error(28)),
        Plan::FailAt(step) if step == name => Err(io::Error::from_raw_os_error(28)),
        Plan::FailAt(_) => Ok(()),
        Plan::Die(0) => {
            *plan = Plan::Nothing;
            drop(plan);
            std::panic::resume_unwind(Box::new("killed"))
        }
        Plan::Fail(n) => {
            *plan = Plan::Fail(n - 1);
            Ok(())
        }
        Plan::FailFrom(n) => {
            *plan = Plan::FailFrom(n - 1);
            Ok(())
        }
        Plan::Die(n) => {
            *plan = Plan::Die(n - 1);
            Ok(())
        }
    }
}

type Job = fn(&Engine, &Path) -> Result<(), Error>;

fn open(engine: &Engine, path: &Path) -> Result<ah_core::Workspace, Error> {
    engine.workspace(path, Access::Create)
}

const JOBS: &[(&str, Job)] = &[
    ("snapshot", |engine, path| open(engine, path)?.snapshot(&SnapshotOptions::default()).map(drop)),
    ("moment", |engine, path| open(engine, path)?.mark(None)?.1.map_or(Ok(()), Err)),
    ("a held timeline", |engine, path| {
        let workspace = open(engine, path)?;
        let folders = std::fs::read_dir(path.with_file_name("home").join("workspaces")).unwrap();
        let folder = folders.map(|folder| folder.unwrap().path()).next().unwrap();
        let held = std::fs::File::create(folder.join("timeline.lock")).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        workspace.add_moment(&SessionName::main(), NewMoment::new(MomentKind::Stop))?;
        ADDED.store(true, Ordering::Relaxed);
        drop(held);
        workspace.snapshot(&SnapshotOptions::default()).map(drop)
    }),
    ("edit", |engine, path| {
        let options = EditOptions { label: Some("new".into()), keep: None };
        open(engine, path)?.edit("@", &options).map(drop)
    }),
    ("rm", |engine, path| open(engine, path)?.rm(&["@{1}".into()], &RmOptions::default()).map(drop)),
    ("gc", |engine, path| open(engine, path)?.gc(&GcOptions::default()).map(drop)),
    ("seek", |engine, path| {
        let workspace = open(engine, path)?;
        let lease = workspace.seek("@", &SeekOptions { while_process_lives: true, ..SeekOptions::default() })?;
        workspace.release(&Release::Id(lease.id)).map(drop)
    }),
    ("branch", |engine, path| {
        let workspace = open(engine, path)?;
        workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() })?;
        workspace.remove_branch("b", true).map(drop)
    }),
    ("restore", |engine, path| {
        std::fs::write(path.join("added"), "x").unwrap();
        // Under two names, of which one may be gone when it is interrupted.
        for n in 0..4 {
            std::fs::write(path.join(format!("b{n}")), "x").unwrap();
            std::fs::hard_link(path.join(format!("b{n}")), path.join(format!("c{n}"))).unwrap();
        }
        open(engine, path)?.restore("@{1}", &RestoreOptions::default()).map(drop)
    }),
    ("undo", |engine, path| open(engine, path)?.undo(&UndoOptions::default()).map(drop)),
    ("settle", |engine, path| open(engine, path)?.gc(&GcOptions { auto: true }).map(drop)),
    ("prune", |engine, path| {
        let options = PruneOptions { policy: Some("keep-last=2".into()), ..PruneOptions::default() };
        open(engine, path)?.prune(&options, &mut |_| Ok(())).map(drop)
    }),
    ("session branch", |engine, path| {
        let made = open(engine, path)?.session_branch(&agent(path).branch_of("@prompt", "retry"))?;
        whole_or_told(&made.conversation);
        Ok(())
    }),
    ("rewind", |engine, path| {
        let made = open(engine, path)?.rewind(&agent(path).back_to("@prompt"))?;
        made.conversation.iter().for_each(whole_or_told);
        Ok(())
    }),
    ("rewind to the beginning", |engine, path| {
        let made = open(engine, path)?.rewind(&agent(path).back_to("@prompt{2}"))?;
        assert!(made.conversation.is_some_and(|made| made.agent_session.is_none()), "the agent starts anew");
        Ok(())
    }),
    ("adopt", |engine, path| {
        let copy = path.with_file_name("copy");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join("a"), "3").unwrap();
        engine.workspace(&copy, Access::Create)?;
        let aside = path.with_file_name("elsewhere");
        std::fs::rename(path, &aside).unwrap();
        let outcome = engine.adopt(&copy, path).map(drop);
        std::fs::rename(&aside, path).unwrap();
        outcome
    }),
    ("move", |engine, path| {
        let elsewhere = path.with_file_name("elsewhere");
        std::fs::rename(path, &elsewhere).unwrap();
        let outcome = open(engine, &elsewhere).map(drop);
        std::fs::rename(&elsewhere, path).unwrap();
        outcome
    }),
];

/// The whole transcript is kept beside a part of it, or it is said why not.
fn whole_or_told(made: &ConversationReport) {
    let told = made.notes.iter().any(|note| note.contains("No space left"));
    assert!(made.untrimmed.as_ref().map_or(told, |kept| kept.is_file() && !told), "{made:?}");
}

/// The agent of a lab, as it was left.
fn agent(path: &Path) -> Talk {
    Talk::known(path.parent().unwrap())
}

/// Each transcript of an agent is one that was there before, or that a session bears; each of these is there.
fn conversations_are_borne(lab: &Lab, workspace: &ah_core::Workspace, what: &str) {
    let talk = agent(&lab.path());
    let sessions = workspace.related_sessions().unwrap();
    let mut borne: Vec<_> = sessions.iter().filter_map(|listed| listed.record.agent.clone()?.transcript).collect();
    borne.push(talk.file.clone());
    borne.sort();
    borne.dedup();
    let files = talk.files();
    if !files.is_empty() {
        assert_eq!(files, borne, "{what}");
    }
    for listed in &sessions {
        let known = listed.branch.as_ref().is_none_or(|name| workspace.find_ready_branch(name).is_ok());
        assert!(known, "{what}: a session of a branch that is not ready");
    }
    // A session that has none now went back from one, which its timeline knows.
    for free in sessions.iter().filter(|listed| listed.record.was_agents && listed.record.agent.is_none()) {
        let named = TimelineFilter { session: Some(free.record.name.clone()), ..TimelineFilter::default() };
        let events = workspace.timeline(&named).unwrap().events;
        let went = |event: &ah_core::Event| matches!(&event.body, EventBody::Rewind(rewind) if rewind.left.is_some());
        assert!(events.iter().any(went), "{what}: the conversation of {} is lost", free.record.name);
    }
    // Where all agents' sessions are said to be known, the hooks find each of them.
    let known = lab.settings.home.join("agents");
    for agent in sessions.iter().filter_map(|listed| listed.record.agent.as_ref()) {
        let found = !known.join("all").exists() || known.join(&agent.name).join(format!("{}.json", agent.id)).exists();
        assert!(found, "{what}: {} is not known", agent.id);
    }
    let folders = std::fs::read_dir(lab.settings.home.join("workspaces")).unwrap().flatten();
    for folder in folders {
        let making = std::fs::read_dir(folder.path().join("conversations")).into_iter().flatten().flatten();
        let making = making.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count();
        assert_eq!(making, 0, "{what}: a conversation that is not finished");
        for session in std::fs::read_dir(folder.path().join("sessions")).into_iter().flatten().flatten() {
            let staging = std::fs::read_dir(session.path()).unwrap().flatten();
            let staging = staging.filter(|entry| entry.file_name().to_string_lossy().starts_with("staging-")).count();
            assert_eq!(staging, 0, "{what}: half a conversation");
        }
    }
}

/// What must hold, whatever happened.
fn check(lab: &Lab, what: &str) {
    let engine = Engine::open(lab.settings.clone()).unwrap();
    // What a dead process wrote down as its own: this one lives on, so it is made to look dead.
    let workspaces = std::fs::read_dir(lab.settings.home.join("workspaces")).unwrap().flatten();
    let conversations = workspaces.map(|workspace| workspace.path().join("conversations"));
    let ours = ["leases", "branches"].map(|folder| lab.settings.home.join(folder));
    for folder in conversations.chain(ours) {
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|ext| ext == "json") {
                let text = std::fs::read_to_string(&file).unwrap();
                let pid = format!("\"pid\": {}", std::process::id());
                std::fs::write(&file, text.replace(&pid, "\"pid\": 4194305")).unwrap();
            }
        }
    }
    // `adopt` has come to its end or it has not: its snapshots are at the one place or the other.
    let copy = lab.top.join("copy");
    let adopted = engine.workspace(&copy, Access::Existing).and_then(|copy| copy.resolve("@")).is_ok();
    let root = if adopted { copy } else { lab.path() };
    let workspace = open(&engine, &root).unwrap();
    let readable = |when: &str| {
        let out = tempfile::tempfile().unwrap();
        for snapshot in workspace.snapshots(&SnapshotFilter::default()).unwrap() {
            let read = workspace.cat_from(&snapshot, &RelPath::new("a").unwrap(), out.as_fd());
            assert!(read.is_ok(), "{what}, {when}: {} cannot be read: {read:?}", snapshot.id);
        }
    };
    // A removal that was begun is off the timeline; one that was not is whole.
    readable("before gc");
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty(), "{what}: {report:?}");
    readable("after gc");
    // An interrupted restore is a person's to decide about: taken back, each path is as it was; done again, all of it is done.
    let text = || std::fs::read_to_string(root.join("a")).unwrap();
    assert!(["0", "1", "2", "3"].contains(&text().as_str()), "{what}: half a file");
    if let Some(interrupted) = workspace.interrupted().unwrap() {
        let done = if INTERRUPTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            let undone = workspace.undo(&UndoOptions::default()).unwrap();
            // An undo is taken to its end.
            let wanted = if what.starts_with("undo") { &interrupted.target } else { &interrupted.safety };
            assert_eq!(undone.target.id, *wanted, "{what}");
            undone
        } else {
            workspace.restore(interrupted.target.as_str(), &RestoreOptions::default()).unwrap()
        };
        assert!(done.failed.is_empty(), "{what}: {:?}", done.failed);
        assert!(workspace.interrupted().unwrap().is_none(), "{what}");
        workspace.gc(&GcOptions::default()).unwrap();
    }
    let staged = std::fs::read_dir(&root).unwrap().flatten();
    let staged = staged.filter(|entry| entry.file_name().to_string_lossy().starts_with(".ah-")).count();
    assert_eq!(staged, 0, "{what}: something of ours is left in the workspace");
    let again = workspace.gc(&GcOptions::default()).unwrap();
    assert!(again.actions.is_empty() && again.failures.is_empty(), "{what}: {again:?}");
    assert!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len() >= 2, "{what}");
    for folder in ["leases", "mounts", "branches", "trash"] {
        let left: Vec<_> = std::fs::read_dir(lab.settings.home.join(folder)).into_iter().flatten().flatten().collect();
        // Temporary files bear the pid of this process, which lives on; that a dead one's go is tested beside the facade.
        let own_temp = |path: &Path| path.to_string_lossy().contains(&format!(".tmp-{}.", std::process::id()));
        let unfinished =
            left.iter().filter(|entry| !own_temp(&entry.path()) && !is_finished_branch(&workspace, &entry.path()));
        assert_eq!(unfinished.count(), 0, "{what}: {left:?} are left in {folder}");
    }
    conversations_are_borne(lab, &workspace, what);
    // No workspace stays registered for a branch that came to nothing.
    let branches: Vec<_> = workspace.branches().unwrap().into_iter().filter_map(|branch| branch.workspace).collect();
    for entry in std::fs::read_dir(lab.settings.home.join("workspaces")).unwrap().flatten() {
        let id = entry.file_name().into_string().unwrap();
        let record = std::fs::read_to_string(entry.path().join("workspace.json")).unwrap();
        let is_branch = record.contains("\"branch\":");
        assert!(!is_branch || branches.iter().any(|branch| branch.as_str() == id), "{what}: {record}");
    }
    let faults = workspace.timeline(&ah_core::TimelineFilter::default()).unwrap().faults;
    assert!(faults.is_empty(), "{what}: {faults:?}");
    workspace.snapshot(&SnapshotOptions::default()).unwrap();
}

/// A branch that came to be before its maker was killed stays, with its record.
fn is_finished_branch(workspace: &ah_core::Workspace, path: &Path) -> bool {
    let branches = workspace.branches().unwrap();
    // Its record, and the backup of that.
    let is_of = |id: &str| {
        path.file_name().is_some_and(|name| {
            [format!("{id}.json"), format!("{id}.json.bak1")].iter().any(|own| name == own.as_str())
        })
    };
    branches.iter().any(|branch| branch.path == path || is_of(branch.id.as_str()))
}

fn rounds(name: &str, job: Job, plan: fn(u64) -> Plan, kind: &str) {
    for step in 0.. {
        let mut lab = Lab::in_memory();
        // Nothing waits for the clock here.
        lab.settings.flags.insert("moments.window".to_owned(), "0s".into());
        (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
        lab.write("a", "3");
        if ["session branch", "rewind", "rewind to the beginning"].contains(&name) {
            let mut talk = Talk::begin(&lab);
            talk.turn(&lab, "the first", "1");
            talk.turn(&lab, "the second", "2");
            talk.make_known(&lab);
        }
        if name == "a held timeline" {
            lab.settings.deadline = Some(Instant::now());
        }
        let engine = lab.engine();
        ADDED.store(false, Ordering::Relaxed);
        if ["undo", "settle"].contains(&name) {
            open(&engine, &lab.path()).unwrap().restore("@", &RestoreOptions::default()).unwrap();
        }
        FAILED.lock().unwrap().clear();
        *PLAN.lock().unwrap() = plan(step);
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&engine, &lab.path())));
        let left = std::mem::replace(&mut *PLAN.lock().unwrap(), Plan::Nothing);
        let reached = matches!(left, Plan::Nothing | Plan::FailFrom(0));
        if ["move", "adopt"].contains(&name) && !lab.path().exists() {
            std::fs::rename(lab.top.join("elsewhere"), lab.path()).unwrap();
        }
        let what = format!("{name}, {kind} at step {step}");
        if let Ok(Err(error)) = &outcome {
            assert!(reached, "{what}: {error:?}");
            assert!(error.hint.is_some() || error.kind != ErrorKind::ResourceExhausted, "{what}: {error:?}");
        }
        if !reached {
            assert!(matches!(outcome, Ok(Ok(()))), "{what}: {outcome:?}");
            assert!(step > 0, "{name} has no durable step");
            return;
        }
        if name == "a held timeline" {
            open(&lab.engine(), &lab.path()).unwrap().capture().unwrap();
        }
        if matches!(&outcome, Ok(Err(error)) if error.message.contains("before it changed anything")) {
            let interrupted = open(&lab.engine(), &lab.path()).unwrap().interrupted().unwrap();
            assert!(interrupted.is_none(), "{what}: {outcome:?}, and {interrupted:?}");
        }
        if name == "rewind" {
            gone_back_after_all(&lab, &what);
        }
        check(&lab, &what);
        if name == "a held timeline" {
            let moments = open(&lab.engine(), &lab.path()).unwrap().moments(None).unwrap();
            let least = usize::from(ADDED.load(Ordering::Relaxed));
            assert!((least..=1).contains(&moments.len()), "{what}: {moments:?}");
            let settled = |moment: &ah_core::Moment| moment.record.snapshot.is_some() || moment.record.reason.is_some();
            assert!(moments.iter().all(settled), "{what}: {moments:?}");
        }
        if FAILED.lock().unwrap().starts_with("untrimmed-") {
            assert!(matches!(outcome, Ok(Ok(()))), "{what}: {outcome:?}, for want of what nobody needs");
        }
        if name == "session branch" && matches!(outcome, Ok(Err(_))) {
            // An error says that nothing was made.
            let made = open(&lab.engine(), &lab.path()).unwrap().find_ready_branch("retry");
            assert!(made.is_err(), "{what}: {outcome:?}, and {made:?}");
        }
    }
}

/// Of a rewind that was cut short in the middle of its restore it is said what finishes it, the conversation too; every other time that is done.
fn gone_back_after_all(lab: &Lab, what: &str) {
    let workspace = open(&lab.engine(), &lab.path()).unwrap();
    let Some(interrupted) = workspace.interrupted().unwrap() else { return };
    let moment =
        interrupted.finish.strip_prefix("ah agent rewind ").unwrap_or_else(|| panic!("{what}: {interrupted:?}"));
    if INTERRUPTED.load(Ordering::Relaxed).is_multiple_of(2) {
        return;
    }
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    let made = workspace.rewind(&agent(&lab.path()).back_to(moment)).unwrap();
    let said = std::fs::read_to_string(made.conversation.unwrap().transcript.unwrap()).unwrap();
    let a = std::fs::read_to_string(lab.path().join("a")).unwrap();
    assert!(a == "1" && said.contains("the first") && !said.contains("the second"), "{what}: {a}, {said}");
    assert!(workspace.interrupted().unwrap().is_none(), "{what}");
}

/// A workspace that is to be none any more stays one that can be used, or is gone; a second try finishes it, and another one is not touched.
fn forgotten(plan: fn(u64) -> Plan, kind: &str) {
    for step in 0.. {
        let lab = Lab::in_memory();
        (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
        let engine = lab.engine();
        let beside = lab.top.join("beside");
        std::fs::create_dir_all(&beside).unwrap();
        std::fs::write(beside.join("a"), "beside").unwrap();
        let other = engine.workspace(&beside, Access::Create).unwrap();
        other.snapshot(&SnapshotOptions::default()).unwrap();
        let workspace = open(&engine, &lab.path()).unwrap();
        *PLAN.lock().unwrap() = plan(step);
        let outcome = catch_unwind(AssertUnwindSafe(|| workspace.forget().map(drop)));
        let reached = std::mem::replace(&mut *PLAN.lock().unwrap(), Plan::Nothing) == Plan::Nothing;
        let what = format!("forget, {kind} at step {step}");
        assert!(reached || matches!(outcome, Ok(Ok(()))), "{what}: {outcome:?}");
        let engine = lab.engine();
        // What is there of it can be read, and is taken away by who says so again.
        if let Ok(left) = engine.workspace(&lab.path(), Access::Existing) {
            assert!(reached && !matches!(outcome, Ok(Ok(()))), "{what}: it is still there");
            let out = tempfile::tempfile().unwrap();
            for snapshot in left.snapshots(&SnapshotFilter::default()).unwrap() {
                left.cat_from(&snapshot, &RelPath::new("a").unwrap(), out.as_fd()).unwrap();
            }
            if step % 2 == 0 {
                assert_eq!(left.gc(&GcOptions::default()).unwrap().failures, [""; 0], "{what}");
                left.snapshot(&SnapshotOptions::default()).unwrap();
            }
            left.forget().unwrap();
        }
        let error = engine.workspace(&lab.path(), Access::Existing).err().unwrap();
        assert_eq!(error.kind, ErrorKind::NotFound, "{what}");
        let other = engine.workspace(&beside, Access::Existing).unwrap();
        assert_eq!(other.snapshots(&SnapshotFilter::default()).unwrap().len(), 1, "{what}");
        assert_eq!(other.gc(&GcOptions::default()).unwrap().failures, [""; 0], "{what}");
        let named = |folder: &str| std::fs::read_dir(lab.settings.home.join(folder)).into_iter().flatten().count();
        assert_eq!((named("workspaces"), named("trash")), (1, 0), "{what}");
        if !reached {
            assert!(step > 0, "there is no durable step");
            return;
        }
    }
}

/// Where nothing can be written down, not even that something goes, it goes all the same: it may be what holds the room. Until it can, that it is gone is told as after a kill.
fn without_room() {
    let mut lab = Lab::in_memory();
    lab.settings.patience = Duration::ZERO;
    let ids: Vec<String> = (0..4).map(|n| lab.step("a", &n.to_string()).id.to_string()).collect();
    let engine = lab.engine();
    let workspace = open(&engine, &lab.path()).unwrap();
    let branch = workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    let on_full_disk = |step, job: &dyn Fn() -> Result<(), Error>| {
        *PLAN.lock().unwrap() = Plan::FailAt(step);
        let error = job().unwrap_err();
        *PLAN.lock().unwrap() = Plan::Nothing;
        assert!(error.hint.is_some() || error.kind != ErrorKind::ResourceExhausted, "{error:?}");
        error.kind
    };
    let failures = || workspace.gc(&GcOptions::default()).unwrap().failures;
    let rm = |refs: &[String]| workspace.rm(refs, &RmOptions::default()).map(drop);

    // Neither hides the other: what one could not do, and that another is gone.
    *PLAN.lock().unwrap() = Plan::FailAt("timeline.append");
    let fails = Arc::clone(&lab.fake.destroys_fail);
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || fails.store(true, Ordering::Relaxed)));
    let error = rm(&ids[..2]).unwrap_err();
    assert!(error.message.starts_with("1 snapshot is removed"), "{error:?}");
    assert!(error.causes.iter().any(|cause| cause == "made to fail"), "{error:?}");
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    assert_eq!(on_full_disk("timeline.append", &|| rm(&ids[..2])), ErrorKind::ResourceExhausted);
    let told = failures();
    assert!(told.len() == 2 && told.iter().all(|one| one.contains("takes it off")), "{told:?}");
    // What the provider cannot remove stays, and is not said to be gone.
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    assert_ne!(on_full_disk("timeline.append", &|| rm(&ids[2..3])), ErrorKind::ResourceExhausted);
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    assert_eq!(failures(), told);
    rm(&ids[..3]).unwrap();
    assert_eq!(failures(), [""; 0]);

    let remove = |force| workspace.remove_branch("b", force).map(drop);
    // However long that takes, nobody else waits for it.
    let registry = std::fs::File::open(lab.settings.home.join("lock")).unwrap();
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || {
        rustix::fs::flock(&registry, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    }));
    assert_eq!(on_full_disk("replace.write", &|| remove(false)), ErrorKind::ResourceExhausted);
    assert_eq!((branch.path.exists(), workspace.branches_looked_at().unwrap()[0].state), (false, BranchState::Gone));
    assert_eq!(failures(), [""; 0]);
    remove(true).unwrap();
    assert_eq!(workspace.branches().unwrap(), []);
    check(&lab, "without room");
}

/// What went before a line said so is not what the next capture is equal to, even where its session could not be made, and so no line was begun.
fn without_a_session() {
    let mut lab = Lab::in_memory();
    lab.settings.patience = Duration::ZERO;
    lab.settings.flags.insert("moments.window".to_owned(), "0s".into());
    let equal = |snapshot| Ok(ah_plugin_api::Snapshot { tree: Some(ah_plugin_api::ContentId(vec![1])), ..snapshot });
    *lab.fake.of_snapshots.lock().unwrap() = Some(Box::new(equal));
    lab.write("a", "0");
    let workspace = lab.open();
    let captured = || {
        lab.wait(60);
        workspace.add_moment(&SessionName::new("claude-one").unwrap(), NewMoment::new(MomentKind::Stop)).unwrap();
        workspace.capture().unwrap();
        workspace.resolve("@").unwrap().id
    };
    let first = captured();
    assert_eq!(captured(), first);
    *PLAN.lock().unwrap() = Plan::FailAt("replace.write");
    let error = workspace.rm(&["@".into()], &RmOptions::default()).unwrap_err();
    *PLAN.lock().unwrap() = Plan::Nothing;
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}");
    assert_ne!(captured(), first);
}

/// Who stops what makes room keeps what has not gone.
fn stopped_without_room() {
    let mut lab = Lab::in_memory();
    lab.settings.patience = Duration::ZERO;
    let stop = Stop::default();
    let stopped = Arc::clone(&stop.0);
    lab.settings.observer = Arc::new(stop);
    let ids: Vec<String> = (0..3).map(|n| lab.step("a", &n.to_string()).id.to_string()).collect();
    let then = Arc::clone(&stopped);
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || then.store(true, Ordering::Relaxed)));
    *PLAN.lock().unwrap() = Plan::FailAt("timeline.append");
    let error = lab.open().rm(&ids[..2], &RmOptions::default()).unwrap_err();
    *PLAN.lock().unwrap() = Plan::Nothing;
    stopped.store(false, Ordering::Relaxed);
    assert_eq!(error.kind, ErrorKind::Cancelled, "{error:?}");
    assert!(error.to_string().starts_with("1 snapshot is removed"), "{error:?}");
    assert_eq!(lab.open().gc(&GcOptions::default()).unwrap().failures.len(), 1);
}

/// What goes unasked does so once there is room to say so.
fn unasked_without_room() {
    let mut lab = Lab::in_memory();
    lab.settings.patience = Duration::ZERO;
    lab.settings.environment.insert("prune.policy".into(), "keep-last=1".into());
    let automatic = SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() };
    for n in 0..3 {
        lab.wait(60);
        lab.write("a", &n.to_string());
        lab.open().snapshot(&automatic).unwrap();
    }
    lab.settings.environment.insert("prune.min-free".into(), "100%".into());
    *PLAN.lock().unwrap() = Plan::FailAt("timeline.append");
    lab.open().snapshot(&automatic).unwrap_err();
    *PLAN.lock().unwrap() = Plan::Nothing;
    assert_eq!(lab.open().gc(&GcOptions::default()).unwrap().failures, [""; 0]);
    lab.wait(3_600);
    lab.open().snapshot(&automatic).unwrap_err();
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
}

#[test]
fn any_step_may_fail_or_be_the_last() {
    assert!(crash::set_hook(hook));
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<&str>() != Some(&"killed") {
            eprintln!("{info}");
        }
    }));
    for (name, job) in JOBS {
        rounds(name, *job, Plan::Fail, "failing");
        rounds(name, *job, Plan::Die, "killed");
    }
    forgotten(Plan::Fail, "failing");
    forgotten(Plan::Die, "killed");
    for (name, job) in JOBS.iter().filter(|(name, _)| ["snapshot", "moment"].contains(name)) {
        rounds(name, *job, Plan::FailFrom, "failing from there on");
    }
    without_room();
    without_a_session();
    stopped_without_room();
    unasked_without_room();
    assert!(INTERRUPTED.load(Ordering::Relaxed) > 10, "nothing was interrupted");
    let seen = SEEN.lock().unwrap();
    for step in ["conversation-put", "conversation-sync", "untrimmed-copy", "untrimmed-rename"] {
        assert!(seen.contains(step), "{step} is never come by: {seen:?}");
    }
    assert!(seen.contains("unlisted.wait"), "nothing waited beside a timeline: {seen:?}");
    for step in ["journal.end", "restore-staging", "restore-stage", "restore-put", "restore-remove", "restore-sync"] {
        assert!(seen.contains(step), "{step} is never come by: {seen:?}");
    }
}
