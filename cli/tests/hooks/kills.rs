//! The worker that takes snapshots behind the agent, killed at any point: a moment has its own snapshot, or a reason, or none yet;
//! never one that shows something else.

use std::fs;
use std::time::Duration;

use crate::agent::{Agent, cat, is_waiting, moments, settled, text, until};
use crate::support::World;

/// The workers of that world that run.
fn workers(world: &World) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).into_owned();
        if line.contains("__capture") && line.contains(&*world.root().to_string_lossy()) {
            found.push(pid);
        }
    }
    found
}

fn kill(world: &World) -> usize {
    let workers = workers(world);
    for pid in &workers {
        // It may have ended by now.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
    }
    workers.len()
}

#[test]
fn a_killed_worker_leaves_no_lie() {
    let world = World::new();
    for number in 0..200 {
        world.write(format!("d{}/f{number}", number % 10), "x");
    }
    world.write("f", "start");
    let mut agent = Agent::claude(&world, "s1");
    agent.patient = false;
    agent.start();
    settled(&world);
    agent.prompt("go");
    let mut killed = 0;
    for step in 0..24u64 {
        agent.writes("f", &step.to_string());
        // It is there by now, or was: the moment waits for it.
        until("a worker, or its end", || (!workers(&world).is_empty() || !is_waiting(&world)).then_some(()));
        std::thread::sleep(Duration::from_millis(step * 3));
        killed += usize::from(kill(&world) > 0);
    }
    assert!(killed > 5, "workers were to be killed, not {killed}");
    world.fs(["gc"]);
    let moments = settled(&world);
    let tools: Vec<_> = moments.iter().filter(|moment| moment["kind"] == "tool").collect();
    assert_eq!(tools.len(), 24);
    let mut exact = 0;
    for (step, moment) in tools.iter().enumerate() {
        if moment["snapshot"].is_string() && moment["inexact"].is_null() {
            exact += 1;
            assert_eq!(cat(&world, text(moment, "id"), "f").as_deref(), Some(&*step.to_string()), "{moment}");
        } else {
            // What it means then is older, never newer.
            let shown = cat(&world, text(moment, "id"), "f").unwrap();
            let older = shown == "start" || shown.parse::<usize>().unwrap() <= step;
            assert!(older, "{shown} in {moment}");
        }
    }
    // The fence starts another worker in place of a killed one, so that moments of killed ones are exact, too.
    assert!(exact > 24 - killed, "{exact} of 24 are exact, {killed} killed");
    // Nothing half is in the way.
    agent.writes("f", "last");
    let moments = settled(&world);
    assert_eq!(cat(&world, text(moments.last().unwrap(), "id"), "f").as_deref(), Some("last"));
}

#[test]
fn a_tool_whose_hook_was_killed_while_it_waited_is_known_to_run() {
    use rustix::fs::{FlockOperation, flock};
    let world = World::new();
    world.write("f", "start");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    agent.writes("f", "one");
    settled(&world);
    world.wait_for_background();
    let folder = crate::agent::folder(&world);
    // Another session's capture takes its time.
    let lock = fs::File::create(folder.join("capture.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let id = agent.before_without_rest("Bash");
    world.write("f", "two");
    agent.after("Bash", &id);
    let event = serde_json::json!({"session_id": "s1", "cwd": world.root(), "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_use_id": "toolu_killed", "tool_input": {}});
    let mut hook = world.command(["hook", "claude"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut hook.stdin.take().unwrap(), event.to_string().as_bytes()).unwrap();
    let tools = || {
        let all = fs::read_dir(folder.join("sessions")).unwrap().flatten().map(|session| session.path().join("tools"));
        let names = all.flat_map(|tools| fs::read_dir(tools).into_iter().flatten().flatten());
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("call-")).count()
    };
    until("the tool to be noted", || (tools() == 1).then_some(()));
    hook.kill().unwrap();
    hook.wait().unwrap();
    // The agent goes on all the same.
    world.write("f", "three");
    drop(lock);
    let moments = settled(&world);
    let moment = moments.iter().rfind(|moment| moment["kind"] == "tool").unwrap();
    assert_eq!(moment["inexact"], true, "{moment}");
    assert_ne!(cat(&world, text(moment, "id"), "f").as_deref(), Some("three"));
}

#[test]
fn a_library_that_takes_workers_along_is_named_and_each_moment_is_given_up() {
    let world = World::new();
    world.write("f", "start");
    let plugins = ah_test_plugins::folder(&["dies"]);
    for (key, value) in [("provider-path", plugins.path().to_str().unwrap()), ("provider", "dies")] {
        assert_eq!(world.run(["config", "set", key, value]).code, 0);
    }
    let names_it = |text: &str| text.contains("snapshot of the provider dies (") && text.contains("provider_dies.so)");
    let mut agent = Agent::claude(&world, "s1");
    agent.patient = false;
    agent.start();
    agent.prompt("go");
    agent.writes("f", "one");
    agent.stop();
    // What is told before anybody has given up, and after that: so many may have come to it that none waits any more.
    world.wait_for_background();
    let waits = is_waiting(&world);
    let status = world.json("status", &["agent", "fs", "status"]);
    assert!(names_it(text(&status["status"], "stopped")), "{status}");
    assert!(world.run(["agent", "fs", "status"]).stdout.lines().any(|line| line.starts_with("stopped ")));
    let notices = world.json("timeline", &["timeline"])["notices"].as_array().unwrap().clone();
    let notice = notices.iter().find(|notice| notice["kind"] == "capture-stopped").unwrap();
    assert!(names_it(text(notice, "message")) && text(notice, "hint").contains("gc") == waits, "{notice}");
    // Each is tried some times, by whoever comes; those who try die of it, so that they are not asked how they ended.
    for _ in 0..12 {
        if is_waiting(&world) {
            world.run(["agent", "fs", "gc"]);
        }
    }
    assert!(!is_waiting(&world), "moments wait for ever");
    let all = moments(&world);
    assert!(all.len() >= 4, "{all:?}");
    for moment in &all {
        let reason = text(moment, "reason");
        assert!(moment["snapshot"].is_null() && names_it(reason) && reason.ends_with(", 3 times by now"), "{moment}");
    }
    // Until one is taken. That the others have none is still told.
    assert!(world.json("status", &["agent", "fs", "status"])["status"]["stopped"].is_string());
    world.use_git();
    agent.patient = true;
    agent.writes("f", "two");
    let now = settled(&world);
    let (last, before) = now.split_last().unwrap();
    assert_eq!(cat(&world, text(last, "id"), "f").as_deref(), Some("two"));
    assert!(before.iter().all(|moment| names_it(text(moment, "reason"))), "{before:?}");
    assert!(world.json("status", &["agent", "fs", "status"])["status"]["stopped"].is_null());
}

#[test]
fn what_a_person_takes_after_a_stopped_worker_ends_the_warning() {
    let world = World::on_git();
    world.write("f", "start");
    world.fs(["snapshot"]);
    world.wait_for_background();
    let note = |provider: &str, pid: u32| {
        let holder = serde_json::json!({"pid": pid, "start": 1});
        let note = serde_json::json!({"provider": provider, "operation": "snapshot", "since": "2026-01-01T00:00:00Z",
            "holder": holder, "moments": [], "tries": {}});
        fs::write(crate::agent::folder(&world).join("trying.json"), note.to_string()).unwrap();
    };
    let stopped = || world.json("status", &["agent", "fs", "status"])["status"]["stopped"].is_string();
    // What still runs has not stopped.
    let me = std::process::id();
    fs::write(crate::agent::folder(&world).join("trying.json"), "{").unwrap();
    assert!(!stopped());
    note("another", me);
    assert!(stopped(), "that number is another process's now");
    world.fs(["snapshot"]);
    assert!(stopped(), "another provider's is not over");
    note("git", me);
    world.fs(["snapshot"]);
    assert!(!stopped());
}
