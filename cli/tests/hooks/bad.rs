//! What goes wrong from outside: the agent gets its answer and status 0, and what went wrong can be read somewhere.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, cat, folder, nothing_waits, settled, text};
use crate::support::{Ran, User, World, is_root, skip};

/// The lines of the log of what no timeline could take.
fn log(world: &World) -> Vec<Value> {
    let text = fs::read_to_string(world.path("state/logs/hooks.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_no_event() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    let start = json!({"session_id": "s1", "cwd": world.root(), "hook_event_name": "SessionStart"}).to_string();
    let bad: &[&[u8]] =
        &[b"", b"{", b"[]", b"null", b"{\"session_id\":1}", b"\xff\xfe", &start.as_bytes()[..start.len() - 3]];
    for (number, bytes) in bad.iter().enumerate() {
        let ran = agent.feed(bytes);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert_eq!(log(&world).len(), number + 1, "{ran:?}");
    }
    // One that wants JSON gets it all the same.
    let mut gemini = Agent::claude(&world, "s1");
    gemini.name = "gemini";
    let ran = gemini.feed(b"nonsense");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{}\n"), "{ran:?}");
    // Whatever the words of the call are.
    for words in [&["hook"][..], &["hook", "nobody"], &["hook", "claude", "--no-such-option"], &["hook", "claude", "x"]]
    {
        assert_eq!(world.run(words).code, 0, "{words:?}");
    }
    assert!(!world.path("state/workspaces").exists());
}

#[test]
fn what_works_behind_makes_no_state_again_that_was_removed() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    agent.call("SessionStart", json!({}));
    settled(&world);
    world.wait_for_background();
    let state = world.path("state");
    let root = world.root();
    let behind = ["__capture", "--quiet", "-C", root.to_str().unwrap()];
    // All but the folder itself, then that too.
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("home.json") {
            continue;
        }
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    world.run(behind);
    assert!(!state.join("workspaces").exists());
    fs::remove_dir_all(&state).unwrap();
    world.run(behind);
    assert!(!state.exists());
}

#[test]
fn an_event_of_another_kind_does_nothing() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    agent.call("PreCompact", json!({"trigger": "auto"}));
    assert!(log(&world).is_empty() && !world.path("state/workspaces").exists());
}

#[test]
fn outside_any_workspace() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    for cwd in [json!(world.path("home")), json!("/"), json!("/no/such/directory"), json!(world.path("state"))] {
        let before = log(&world).len();
        agent.call("SessionStart", json!({"cwd": cwd}));
        assert_eq!(log(&world).len(), before + 1, "{cwd}");
    }
    // In a directory that is gone.
    let gone = world.path("gone");
    fs::create_dir(&gone).unwrap();
    let mut command = world.command(["hook", "claude"]);
    let mut child = command.current_dir(&gone).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    fs::remove_dir(&gone).unwrap();
    let event = json!({"session_id": "s2", "cwd": gone, "hook_event_name": "SessionStart"}).to_string();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), event.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_transcript_that_is_no_file() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    let fifo = world.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    world.give_away();
    for place in [fifo.as_path(), std::path::Path::new("/dev/zero"), &world.root()] {
        agent.call("SessionStart", json!({"source": "resume", "transcript_path": place}));
    }
    let moments = settled(&world);
    assert_eq!(moments.len(), 3);
    assert!(
        moments.iter().all(|moment| moment["snapshot"].is_string() && moment["transcript"].is_null()),
        "{moments:#?}"
    );
}

#[test]
fn fifty_megabytes_on_stdin() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    let id = agent.before("Bash");
    world.write("f", "2");
    let huge = "x".repeat(50 << 20);
    agent.call("PostToolUse", json!({"tool_name": "Bash", "tool_use_id": id, "tool_response": {"stdout": huge}}));
    let moments = settled(&world);
    assert_eq!(cat(&world, text(&moments[1], "id"), "f").as_deref(), Some("2"));
    assert!(fs::metadata(folder(&world).join("sessions")).is_ok());
}

#[test]
fn a_lock_that_hangs_holds_the_agent_up_for_a_bounded_time() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    let lock = fs::File::open(folder(&world).join("timeline.lock")).unwrap();
    let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let since = Instant::now();
    agent.call("Stop", json!({}));
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    drop(held);
    agent.writes("f", "2");
    assert_eq!((settled(&world).len(), log(&world).len()), (3, 0));
}

#[test]
fn where_nothing_can_be_written_the_agent_gets_its_answer() {
    let world = World::new();
    let event = json!({"session_id": "s1", "cwd": world.root(), "hook_event_name": "SessionStart"}).to_string();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]).arg(world.command(["hook", "gemini"]).get_program());
    let command = world.command(["hook", "gemini"]);
    shell
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(world.root()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(event.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(0), &b"{}\n"[..]), "{ran:?}");
}

#[test]
fn a_worker_that_hangs_holds_the_agent_up_for_two_seconds_and_nothing_lies() {
    let world = World::on_git();
    world.write("f", "0");
    let mut agent = Agent::claude(&world, "s1");
    agent.patient = false;
    agent.start();
    settled(&world);
    let lock = fs::File::options().append(true).open(folder(&world).join("capture.lock")).unwrap();
    let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    agent.writes("f", "1");
    let since = Instant::now();
    let next = agent.before("Bash");
    let waited = since.elapsed();
    assert!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(60), "{waited:?}");
    world.write("f", "2");
    drop(held);
    // The snapshot comes too late for the first one.
    nothing_waits(&world);
    agent.after("Bash", &next);
    let moments = settled(&world);
    assert!(moments[1]["inexact"] == true && moments[2]["inexact"].is_null(), "{moments:#?}");
    assert_eq!(cat(&world, text(&moments[1], "id"), "f").as_deref(), Some("0"), "the nearest before it");
    assert_eq!(cat(&world, text(&moments[2], "id"), "f").as_deref(), Some("2"));
}

#[test]
fn where_an_agent_was_at_work_and_nothing_was_kept_all_say_why() {
    let world = World::new();
    let mut agent = Agent::claude(&world, "s1");
    let home = world.path("home");
    let there = |words: &[&str]| world.run([&["-C", home.to_str().unwrap()], words].concat());
    let (said, why) = ("Claude Code called here", "is too much for a workspace");
    assert!(!there(&["timeline"]).stderr.contains(said));
    agent.call("UserPromptSubmit", json!({"cwd": home, "prompt": "do it", "prompt_id": "p1"}));
    for words in [&[][..], &["timeline"], &["agent", "fs", "snapshots"], &["agent", "hooks", "status", "claude"]] {
        let ran = there(words);
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(ran.code == 0 && told.contains(said) && told.contains(why), "{words:?}: {ran:?}");
        assert!(!told.contains("`ah agent fs snapshot`"), "{words:?}: {ran:?}");
    }
    for words in [&["agent", "fs", "restore", "@prompt"][..], &["agent", "rewind"]] {
        let ran = there(words);
        assert!(ran.code == 3 && ran.stderr.contains(said) && ran.stderr.contains(why), "{words:?}: {ran:?}");
        assert!(!ran.stderr.contains("`ah agent fs snapshot`"), "{words:?}: {ran:?}");
    }
    let status = world.json("hooks-status", &["-C", home.to_str().unwrap(), "agent", "hooks", "status"]);
    let unkept = |agent: &str| {
        status["hooks"].as_array().unwrap().iter().find(|it| it["agent"] == agent).unwrap()["unkept"].clone()
    };
    assert!(unkept("claude")["reason"].as_str().unwrap().contains(why) && unkept("codex").is_null(), "{status:#}");
    // Elsewhere nothing is said of it, wherever the agent goes from there.
    agent.env = vec![("CLAUDE_PROJECT_DIR".to_owned(), home.to_str().unwrap().to_owned())];
    agent.call("UserPromptSubmit", json!({"prompt": "again", "prompt_id": "p2"}));
    assert!(!world.run(["timeline"]).stderr.contains(said) && there(&["timeline"]).stderr.contains(said));
    // That something was kept of the same agent elsewhere does not make up for it.
    Agent::claude(&world, "s2").start();
    assert!(there(&["agent", "hooks", "status", "claude"]).stdout.contains(said));
    // Nor where something was kept since.
    assert_eq!(there(&["agent", "fs", "snapshot", "--force"]).code, 0);
    assert!(!there(&[]).stderr.contains(said));
}

#[test]
fn a_state_that_cannot_be_written() {
    if !is_root() {
        return skip("needs root, to act as another user");
    }
    // As another user: root's state, which that user cannot even look into; and its own, read-only.
    let world = World::of(User::Ordinary);
    // Whose store has nothing in it that is read-only anyway.
    world.use_git();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    let state = world.path("state");
    let set = |mode| {
        let all = walk(&state);
        for path in all {
            let mode = if path.is_dir() { mode | 0o100 } else { mode };
            change_mode(&path, mode);
        }
    };
    set(0o400);
    agent.call("Stop", json!({}));
    agent.call("PreToolUse", json!({"tool_name": "Bash", "tool_use_id": "t"}));
    set(0o600);
    std::os::unix::fs::chown(&state, Some(0), Some(0)).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let before = world.picture("state");
    agent.call("Stop", json!({}));
    assert_eq!(world.picture("state"), before);
}

#[test]
fn inside_an_agents_sandbox_reading_works_and_writing_says_what_to_allow() {
    if !is_root() {
        return skip("needs root, to act as another user");
    }
    let world = World::of(User::Ordinary);
    world.use_git();
    world.write("f", "1");
    world.fs(["snapshot", "-m", "before"]);
    // As far as can be seen from inside: nothing of the state can be written.
    for path in walk(&world.path("state")) {
        let mode = if path.is_dir() { 0o500 } else { 0o400 };
        change_mode(&path, mode);
    }
    let inside = |words: &[&str]| Ran::of(world.command(words).env("CODEX_THREAD_ID", "t"));
    assert_eq!(inside(&["agent", "fs", "cat", "before", "f"]).stdout, "1");
    assert_eq!(inside(&["timeline"]).code, 0);
    for words in [&["agent", "fs", "snapshot"][..], &["moment", "-m", "x"]] {
        let ran = inside(words);
        let told = format!("`codex --add-dir {}`", world.path("state").display());
        assert!(ran.code != 0 && ran.stderr.contains(&told), "{ran:?}");
    }
}

/// A process in the background may take a file away that was there a moment ago.
fn change_mode(path: &std::path::Path, mode: u32) {
    match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        outcome => outcome.unwrap(),
    }
}

fn walk(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    if path.is_dir() && !path.is_symlink() {
        // As above: it may be gone by now.
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            all.extend(walk(&entry.path()));
        }
    }
    all.push(path.to_owned());
    all
}

#[test]
fn a_session_whose_index_is_lost_is_found_again() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "../../odd id\n");
    agent.start();
    settled(&world);
    fs::remove_dir_all(world.path("state/agents")).unwrap();
    agent.stop();
    let moments = settled(&world);
    assert_eq!(moments.len(), 2);
    assert_eq!(moments[0]["session"], moments[1]["session"]);
}

/// Takes what room the disk of the state has, also that in the last block of a timeline.
fn fill(world: &World) {
    for session in fs::read_dir(folder(world).join("sessions")).unwrap() {
        let mut timeline =
            fs::File::options().append(true).open(session.unwrap().path().join("timeline.jsonl")).unwrap();
        // Blank lines count for nothing.
        let more = timeline.metadata().unwrap().len().next_multiple_of(4096) - timeline.metadata().unwrap().len();
        timeline.write_all(&vec![b'\n'; usize::try_from(more).unwrap()]).unwrap();
    }
    let mut filler = fs::File::create(world.path("state/filler")).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while filler.write_all(&vec![1; size]).is_ok() {}
    }
}

#[test]
fn a_full_disk_has_room_for_the_first_failure_and_is_said_to_be_full() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    for begun in [true, false] {
        let world = World::new();
        let size = Some("size=4m,mode=700");
        let state = world.path("state");
        nix::mount::mount(Some("tmpfs"), &state, Some("tmpfs"), nix::mount::MsFlags::empty(), size).unwrap();
        world.use_git();
        world.write("f", "one");
        world.fs(["snapshot"]);
        world.wait_for_background();
        let told = |words: &[&str]| {
            let ran = world.run(words);
            assert_eq!(ran.code, 0, "{ran:?}");
            ran.stderr.contains("the disk of AH_HOME")
                && ran.stderr.contains("agents' moments are kept in part at best")
        };
        let agent = Agent::claude(&world, "s1");
        if begun {
            agent.start();
            agent.prompt("go");
            settled(&world);
            world.wait_for_background();
        }
        assert!(!told(&["--color", "never"]) && !told(&["agent", "fs", "status"]));
        fill(&world);
        if !begun {
            agent.start();
        }
        let id = agent.before_without_rest("Bash");
        fs::remove_file(world.root().join("f")).unwrap();
        agent.after("Bash", &id);
        agent.stop();
        assert!(told(&["--color", "never"]) && told(&["agent", "fs", "status"]));
        // Where no timeline can take it, what is in the log is told.
        let timeline = world.json("timeline", &["timeline"]);
        let failed = timeline["events"].as_array().unwrap().iter().find(|event| event["type"] == "hook-failed");
        let bare = world.run(["--color", "never"]).stderr;
        match begun {
            true => assert!(text(failed.unwrap(), "reason").contains("No space left"), "{timeline:#}"),
            false => assert!(failed.is_none() && bare.contains("nothing was kept of that"), "{bare}"),
        }
        fs::remove_file(world.path("state/filler")).unwrap();
        assert!(!told(&["--color", "never"]) && !told(&["agent", "fs", "status"]));
    }
}
