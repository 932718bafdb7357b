//! What agents do in good order, and what stands on the timeline of it.

use std::fs;

use serde_json::{Value, json};

use crate::agent::{Agent, cat, kinds, moments, settled, text, until};
use crate::support::{Ran, World};

#[test]
fn every_moment_shows_the_files_as_they_were() {
    World::each(|world| {
        world.write("f", "zero");
        let agent = Agent::claude(world, "s1");
        agent.start();
        agent.prompt("first, please");
        agent.writes("f", "one");
        agent.writes("g/new", "two");
        agent.stop();
        agent.prompt("second");
        // By a shell command, and failing.
        let id = agent.before("Bash");
        fs::remove_file(world.root().join("f")).unwrap();
        agent.call("PostToolUseFailure", json!({"tool_name": "Bash", "tool_use_id": id, "tool_input": {"command": "rm f\nfalse"}, "error": "exit 1"}));
        agent.stop();
        agent.end();
        let moments = settled(world);
        let all = ["session-start", "prompt", "tool", "tool", "stop", "prompt", "tool-failed", "stop", "session-end"];
        assert_eq!(kinds(&moments), all);
        let files = [
            (Some("zero"), None),
            (Some("zero"), None),
            (Some("one"), None),
            (Some("one"), Some("two")),
            (Some("one"), Some("two")),
            (Some("one"), Some("two")),
            (None, Some("two")),
            (None, Some("two")),
            (None, Some("two")),
        ];
        for (moment, (f, g)) in moments.iter().zip(files) {
            let id = text(moment, "id");
            assert!(moment["inexact"].is_null() && moment["snapshot"].is_string(), "{moment}");
            assert_eq!((cat(world, id, "f").as_deref(), cat(world, id, "g/new").as_deref()), (f, g), "{moment}");
        }
        // What nothing changed between shares a snapshot. Where everything is captured, that something was read is a change, too.
        if world.can("applies-policy") {
            assert_eq!(moments[0]["snapshot"], moments[1]["snapshot"]);
            assert_eq!(moments[3]["snapshot"], moments[5]["snapshot"]);
        }
        assert_ne!(moments[2]["snapshot"], moments[3]["snapshot"]);
        let session = text(&moments[0], "session").to_owned();
        assert!(session.starts_with("claude-20") && session.ends_with("-1"), "{session}");
        assert!(moments.iter().all(|moment| moment["session"] == session.as_str()));
        // Names of points.
        assert_eq!(cat(world, "@prompt", "f").as_deref(), Some("one"));
        assert_eq!(cat(world, "@prompt{2}", "f").as_deref(), Some("zero"));
        assert_eq!(cat(world, text(&moments[2], "time"), "f").as_deref(), Some("one"));
        // Each is shown with what it was.
        let tool = world.json("show", &["agent", "fs", "show", text(&moments[2], "id")]);
        assert_eq!((&tool["moment"]["id"], &tool["moment"]["tool"]["name"]), (&moments[2]["id"], &json!("Write")));
        assert_eq!((&tool["prompt"]["id"], &tool["snapshot"]["id"]), (&moments[1]["id"], &moments[2]["snapshot"]));
        let told = world.fs(["show", text(&moments[2], "id")]);
        for line in
            ["event       tool", "tool        Write (toolu_s1_", "\"first, please\" (", "exactly by this snapshot"]
        {
            assert!(told.contains(line), "{line}: {told}");
        }
        let snapshot = world.json("show", &["agent", "fs", "show", text(&moments[2], "snapshot")]);
        assert!(snapshot["moment"].is_null() && snapshot["prompt"].is_null(), "{snapshot}");
        // The files that each prompt changed.
        let files = until("the files that each prompt changed", || {
            let timeline = world.json("timeline", &["timeline"]);
            let groups = timeline["prompts"].as_array().unwrap().clone();
            assert_eq!(groups.len(), 3, "{groups:?}");
            let files: Vec<Value> = groups.iter().map(|group| group["prompt"]["files"].clone()).collect();
            files[1..].iter().all(Value::is_object).then_some(files)
        });
        assert_eq!(files[1], json!({"total": 2, "paths": ["f", "g/new"]}));
        assert_eq!(files[2], json!({"total": 1, "paths": ["f"]}));
        let shown = world.run(["timeline"]).stdout;
        assert!(shown.contains("\"first, please\" - 2 files: f, g/new"), "{shown}");
        assert!(shown.contains("Bash: rm f false\n"), "{shown}");
        // A snapshot that another one serves for is nobody's concern.
        assert!(!shown.contains("by capture"), "{shown}");
        // The session, as it ended.
        let list = world.json("session-list", &["session", "list"]);
        let record = list["sessions"].as_array().unwrap().iter().find(|one| one["name"] == session.as_str()).unwrap();
        assert_eq!((&record["agent"]["id"], &record["ended"]["reason"]), (&json!("s1"), &json!("exit")));
        assert_eq!(record["agent"]["start"], json!(world.root()));
        let shown = world.json("session-show", &["session", "show", &session]);
        assert_eq!((&shown["moments"], &shown["prompts"]), (&json!(9), &json!(2)));
    });
}

#[test]
fn what_waits_is_captured_before_files_are_put_back() {
    let world = World::on_git();
    world.write("f", "zero");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    // Whoever is not hurried waits for more.
    assert_eq!(world.run(["config", "set", "moments.window", "10s"]).code, 0);
    agent.writes("f", "one");
    let safety = world.fs(["restore", "@{1}"]);
    assert!(!safety.is_empty());
    let moments = settled(&world);
    let tool = &moments[1];
    assert!(tool["inexact"].is_null() && tool["snapshot"].is_string(), "{tool}");
    assert_eq!(cat(&world, text(tool, "id"), "f").as_deref(), Some("one"));
    assert_eq!(world.read("f").as_deref(), Some("zero"));
}

#[test]
fn what_another_tool_overtook_is_inexact() {
    let world = World::on_git();
    world.write("f", "0");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.prompt("in parallel");
    let (one, two) = (agent.before("Bash"), agent.before("Edit"));
    let reading = agent.before("Read");
    world.write("f", "1");
    agent.after("Bash", &one);
    // The other one still runs.
    settled(&world);
    world.write("f", "2");
    agent.after("Edit", &two);
    settled(&world);
    // A tool that only reads is in nobody's way.
    agent.after("Read", &reading);
    agent.writes("f", "3");
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "tool", "tool", "tool"]);
    let inexact: Vec<bool> = moments.iter().map(|moment| moment["inexact"] == true).collect();
    assert_eq!(inexact, [false, false, true, false, false, false]);
    assert!(text(&moments[2], "reason").contains("Edit"), "{}", moments[2]);
    assert!(moments[2]["snapshot"].is_string());
    // Never offered as what it is not: the nearest before it, by its id as by its place.
    assert_eq!(cat(&world, text(&moments[2], "id"), "f").as_deref(), Some("0"));
    assert_eq!(cat(&world, text(&moments[3], "id"), "f").as_deref(), Some("2"));
    assert_eq!(cat(&world, text(&moments[5], "id"), "f").as_deref(), Some("3"));
    assert!(world.run(["timeline"]).stdout.contains("inexact: "));
}

#[test]
fn a_refused_tool_does_not_run() {
    let world = World::on_git();
    world.write("f", "0");
    let agent = Agent::claude(&world, "s1");
    std::fs::write(agent.transcript(), "{\"type\":\"summary\"}\n").unwrap();
    agent.start();
    agent.prompt("one");
    // A person said no, or another hook: the result alone tells.
    let refused = agent.before("Bash");
    let edit = agent.before("Edit");
    world.write("f", "1");
    agent.after("Edit", &edit);
    let result = json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": refused, "is_error": true, "content": "The user doesn't want to proceed"}]}});
    let mut transcript = std::fs::read_to_string(agent.transcript()).unwrap();
    transcript.push_str(&format!("{result}\n"));
    std::fs::write(agent.transcript(), transcript).unwrap();
    agent.writes("f", "2");
    let moments = settled(&world);
    let inexact: Vec<bool> = moments.iter().map(|moment| moment["inexact"] == true).collect();
    assert_eq!(inexact, [false, false, true, false], "{moments:#?}");
    // Before the result is there it may still run; then the neighbour that is taken is told.
    let ran = world.run(["agent", "fs", "cat", text(&moments[2], "id"), "f"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "0"));
    assert!(ran.stderr.contains("exactly (Bash was running at the same time)"), "{}", ran.stderr);
    assert_eq!(cat(&world, text(&moments[3], "id"), "f").as_deref(), Some("2"));
}

#[test]
fn an_interrupted_tool_is_forgotten() {
    let world = World::new();
    world.write("f", "0");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.prompt("one");
    // Ctrl-C: nobody says that it ended.
    agent.before("Bash");
    world.write("f", "1");
    agent.prompt("two");
    agent.writes("f", "2");
    let moments = settled(&world);
    assert!(moments.iter().all(|moment| moment["inexact"].is_null()), "{moments:#?}");
    assert_eq!(cat(&world, text(&moments[2], "id"), "f").as_deref(), Some("1"));
    assert_eq!(cat(&world, text(&moments[3], "id"), "f").as_deref(), Some("2"));
}

#[test]
fn an_interrupted_sub_agents_tools_are_forgotten_unless_it_goes_on() {
    let world = World::new();
    world.write("f", "0");
    let agent = Agent::claude(&world, "s1");
    let of_sub_agent = |tool: &str| json!({"tool_name": "Bash", "tool_use_id": tool, "agent_id": "a1"});
    agent.start();
    agent.prompt("by a sub-agent");
    agent.call("PreToolUse", json!({"tool_name": "Agent", "tool_use_id": "t1", "tool_input": {}}));
    agent.call("PreToolUse", of_sub_agent("t2"));
    // Ctrl-C.
    agent.prompt("not so");
    agent.writes("f", "1");
    let moments = settled(&world);
    assert!(moments.iter().all(|moment| moment["inexact"].is_null()), "{moments:#?}");
    assert_eq!(cat(&world, text(moments.last().unwrap(), "id"), "f").as_deref(), Some("1"));
    // One that was sent to the background goes on beside the next prompt, and beside the answer, which says so.
    agent.call("PreToolUse", json!({"tool_name": "Agent", "tool_use_id": "t3", "tool_input": {}}));
    agent.call("PreToolUse", of_sub_agent("t4"));
    let launched = json!({"isAsync": true, "status": "async_launched", "agentId": "a1"});
    agent.call("PostToolUse", json!({"tool_name": "Agent", "tool_use_id": "t3", "tool_response": launched}));
    agent.prompt("meanwhile");
    agent.call("Stop", json!({"background_tasks": [{"id": "a1", "type": "subagent", "status": "running"}]}));
    agent.prompt("and?");
    let more = settled(&world);
    assert_eq!(kinds(&more[moments.len()..]), ["tool", "prompt", "stop", "prompt"]);
    assert!(more[moments.len()..].iter().all(|moment| moment["inexact"] == true), "{more:#?}");
    // It was stopped, which nobody says but the next answer.
    agent.call("Stop", json!({"background_tasks": []}));
    assert!(settled(&world).last().unwrap()["inexact"].is_null());
}

#[test]
fn a_command_in_the_background_makes_moments_inexact_until_it_ends() {
    let world = World::new();
    world.write("f", "0");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    // Other tests' processes are children of this one, too: those that begin beside the tool count as its, as long as they run.
    for round in 0..20 {
        let input = json!({"run_in_background": true});
        let members = json!({"tool_name": "Bash", "tool_use_id": format!("t{round}"), "tool_input": input});
        agent.call("PreToolUse", members.clone());
        // A child of this process, which is the agent here.
        let mut command = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        agent.call("PostToolUse", members);
        agent.writes("f", "1");
        let with = settled(&world);
        command.kill().unwrap();
        command.wait().unwrap();
        agent.writes("f", "2");
        let moments = settled(&world);
        assert_eq!((with.len(), moments.len()), (3 * round + 3, 3 * round + 4));
        assert!(with[3 * round + 1..].iter().all(|moment| moment["inexact"] == true), "{with:#?}");
        let after = &moments[3 * round + 3];
        if after["inexact"].is_null() {
            assert_eq!(cat(&world, text(after, "id"), "f").as_deref(), Some("2"));
            return;
        }
    }
    panic!("no moment is exact any more");
}

#[test]
fn rows_of_several_sessions_are_in_the_order_of_time() {
    let world = World::new();
    let both = [Agent::claude(&world, "s1"), Agent::claude(&world, "s2")];
    both.iter().for_each(Agent::start);
    for round in ["one", "two"] {
        both.iter().for_each(|agent| agent.prompt(round));
        both.iter().for_each(|agent| agent.writes("f", round));
    }
    let ids: Vec<String> = settled(&world).iter().map(|moment| text(moment, "id").to_owned()).collect();
    let shown = world.run(["timeline"]).stdout;
    let places: Vec<usize> = ids.iter().map(|id| shown.find(id.as_str()).unwrap()).collect();
    assert!(ids.len() == 10 && places.is_sorted(), "{shown}");
}

#[test]
fn three_agents_at_once_in_one_workspace() {
    const STEPS: usize = 6;
    let world = World::new();
    world.write("f", "0");
    world.fs(["snapshot"]);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let world = &world;
            scope.spawn(move || {
                let agent = Agent::claude(world, name);
                agent.start();
                for step in 0..STEPS {
                    agent.prompt(&format!("{name} {step}"));
                    agent.writes(&format!("of-{name}"), &step.to_string());
                    agent.stop();
                }
                agent.end();
            });
        }
    });
    let moments = settled(&world);
    let sessions = world.json("session-list", &["session", "list"]);
    for name in ["a", "b", "c"] {
        let mut all = sessions["sessions"].as_array().unwrap().iter();
        let session = all.find(|session| session["agent"]["id"] == name).unwrap();
        let own: Vec<&Value> = moments.iter().filter(|moment| moment["session"] == session["name"]).collect();
        assert_eq!(own.len(), 2 + 3 * STEPS);
        let mut step = None;
        for moment in own {
            let kind = text(moment, "kind");
            if kind == "tool" {
                step = Some(step.map_or(0, |step| step + 1));
            } else if kind == "prompt" {
                let next = step.map_or(0, |step: i32| step + 1);
                assert_eq!(text(moment, "prompt"), format!("{name} {next}"));
            }
            // What others write at the same time is in it as it was; its own is as it was at its moment.
            assert!(moment["inexact"].is_null(), "{moment}");
            let shown = cat(&world, text(moment, "id"), &format!("of-{name}"));
            assert_eq!(shown, step.map(|step| step.to_string()), "{moment}");
        }
    }
}

#[test]
fn the_same_event_called_twice_is_one_moment() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    let twice = |event: &str, members: Value| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| agent.call(event, members.clone()));
            }
        });
    };
    agent.start();
    twice("UserPromptSubmit", json!({"prompt": "x", "prompt_id": "p"}));
    for tool in ["t1", "t2"] {
        twice("PreToolUse", json!({"tool_name": "Bash", "tool_use_id": tool}));
        twice("PostToolUse", json!({"tool_name": "Bash", "tool_use_id": tool}));
    }
    assert_eq!(kinds(&settled(&world)), ["session-start", "prompt", "tool", "tool"]);
    let sessions = world.json("session-list", &["session", "list"]);
    let agents = sessions["sessions"].as_array().unwrap().iter().filter(|one| one["agent"].is_object()).count();
    assert_eq!(agents, 1);
}

#[test]
fn an_event_that_could_not_be_served_is_served_when_it_is_called_again() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    let session = text(&settled(&world)[0], "session").to_owned();
    let tools = crate::agent::folder(&world).join("sessions").join(session).join("tools");
    assert!(!tools.exists());
    fs::write(&tools, "in the way").unwrap();
    let begins = || agent.call("PreToolUse", json!({"tool_name": "Bash", "tool_use_id": "t1"}));
    assert!(begins().stderr.contains("ah hook: "));
    fs::remove_file(&tools).unwrap();
    begins();
    agent.writes("f", "2");
    assert_eq!(settled(&world).last().unwrap()["inexact"], true, "the tool runs");
}

#[test]
fn events_without_an_id_are_never_taken_for_one_another() {
    let world = World::new();
    world.write("f", "0");
    // Tools at once, of an agent that names them by nothing but what they are.
    let mut agent = Agent::claude(&world, "g1");
    agent.name = "gemini";
    let gemini = |event: &str| {
        let event = json!({"session_id": "g1", "cwd": world.root(), "hook_event_name": event, "tool_name": "run_shell_command"});
        let ran = agent.feed(event.to_string().as_bytes());
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "{}\n"), "{ran:?}");
    };
    gemini("BeforeTool");
    gemini("BeforeTool");
    world.write("f", "1");
    gemini("AfterTool");
    settled(&world);
    world.write("f", "2");
    gemini("AfterTool");
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["tool", "tool"]);
    assert!(moments[0]["inexact"] == true && moments[1]["inexact"].is_null(), "{moments:#?}");
    assert_eq!(cat(&world, text(&moments[1], "id"), "f").as_deref(), Some("2"));
    // Prompts in one turn: what its id names is the turn.
    let mut codex = Agent::claude(&world, "c1");
    codex.name = "codex";
    for prompt in ["go", "not there", "not there"] {
        codex.call("UserPromptSubmit", json!({"prompt": prompt, "turn_id": "t1"}));
    }
    let moments = settled(&world);
    assert_eq!(kinds(&moments[2..]), ["prompt", "prompt", "prompt"]);
}

#[test]
fn lines_that_come_late_are_caught_up_with() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    let line = |value: Value| format!("{value}\n");
    let stamp = "2026-01-01T00:00:00.000Z";
    let user = line(json!({"type": "user", "uuid": "u1", "sessionId": "s1", "timestamp": stamp,
        "message": {"role": "user", "content": "do it"}}));
    let call = line(json!({"type": "assistant", "uuid": "u2", "sessionId": "s1", "timestamp": stamp,
        "message": {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Write", "input": {}}]}}));
    let result = line(json!({"type": "user", "uuid": "u3", "sessionId": "s1", "timestamp": stamp,
        "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}}));
    agent.start();
    agent.call("UserPromptSubmit", json!({"prompt": "do it", "prompt_id": "p"}));
    fs::write(agent.transcript(), format!("{user}{call}")).unwrap();
    world.give_away();
    agent.call("PreToolUse", json!({"tool_name": "Write", "tool_use_id": "t1"}));
    agent.call("PostToolUse", json!({"tool_name": "Write", "tool_use_id": "t1"}));
    let first = settled(&world);
    assert_eq!(first[2]["transcript"]["line"], 2, "{}", first[2]);
    // The result is written when the hook has long been answered.
    fs::write(agent.transcript(), format!("{user}{call}{result}")).unwrap();
    let at = until("the line that was late", || {
        let at = moments(&world)[2]["transcript"].clone();
        (at["line"] == 3).then_some(at)
    });
    assert_eq!(at["offset"], json!(user.len() + call.len() + result.len()));
}

/// Older versions of the agent say no ids of prompts.
#[test]
fn equal_prompts_at_once_have_places_of_their_own() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    let line = |kind: &str, uuid: &str, text: &str| {
        let now = std::process::Command::new("date").args(["-u", "+%FT%T.%3NZ"]).output().unwrap().stdout;
        let line = json!({"type": kind, "uuid": uuid, "sessionId": "s1",
            "timestamp": String::from_utf8(now).unwrap().trim(), "message": {"role": kind, "content": text}});
        let written = fs::read_to_string(agent.transcript()).unwrap_or_default();
        fs::write(agent.transcript(), format!("{written}{line}\n")).unwrap();
        world.give_away();
    };
    agent.start();
    for (first, second) in [("u1", "u2"), ("u3", "u4")] {
        agent.call("UserPromptSubmit", json!({"prompt": "go on"}));
        line("user", first, "go on");
        line("assistant", second, "done");
    }
    let session = text(&settled(&world)[1], "session").to_owned();
    let late = crate::agent::folder(&world).join("sessions").join(session).join("late");
    until("all places to be found", || fs::read_to_string(&late).unwrap().contains("\"moments\":[]").then_some(()));
    let at: Vec<Value> = moments(&world)[1..].iter().map(|moment| moment["transcript"]["line"].clone()).collect();
    assert_eq!(at, [0, 2]);
}

#[test]
fn an_agent_that_vanished_ends_its_session() {
    let world = World::new();
    world.write("f", "1");
    // A shell under another name counts as an agent.
    let shell = world.path("agentlike");
    fs::copy("/bin/sh", &shell).unwrap();
    let event = json!({"session_id": "s1", "cwd": world.root(), "hook_event_name": "SessionStart"});
    fs::write(world.path("event"), event.to_string()).unwrap();
    let script =
        format!("'{}' hook claude < '{}'; true", crate::support::ah().display(), world.path("event").display());
    let mut command = std::process::Command::new(&shell);
    command.args(["-c", &script]).env_clear().env("AH_HOME", world.path("state")).env("HOME", world.path("home"));
    let ran = Ran::of(command.env("AH_HELPER_SOCKET", "").current_dir(world.root()));
    assert_eq!(ran.code, 0, "{ran:?}");
    settled(&world);
    let list = world.json("session-list", &["session", "list"]);
    assert_eq!(list["sessions"][0]["ended"]["reason"], "vanished", "{list}");
    assert_eq!(kinds(&moments(&world)), ["session-start", "session-end"]);
    // It is taken up again.
    Agent::claude(&world, "s1").call("SessionStart", json!({"source": "resume"}));
    let list = world.json("session-list", &["session", "list"]);
    assert!(list["sessions"][0]["ended"].is_null(), "{list}");
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1, "{list}");
}

#[test]
fn commands_that_an_agent_runs_know_their_session() {
    let world = World::new();
    world.write("f", "1");
    let mut agent = Agent::claude(&world, "s1");
    let file = world.path("env.sh");
    fs::write(&file, "export OTHER=1").unwrap();
    world.give_away();
    agent.env.push(("CLAUDE_ENV_FILE".into(), file.display().to_string()));
    agent.start();
    agent.call("SessionStart", json!({"source": "compact"}));
    let session = text(&settled(&world)[0], "session").to_owned();
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("export OTHER=1\nexport AH_SESSION={session}\n"));
    // In the recorder's session, if it runs in one that is nobody's yet.
    let mut recorded = Agent::claude(&world, "s2");
    recorded.env.push(("AH_SESSION".into(), "recorded".into()));
    recorded.start();
    // Another agent inside that one's has its own.
    let mut inner = Agent::claude(&world, "s3");
    inner.env.push(("AH_SESSION".into(), "recorded".into()));
    inner.start();
    let list = world.json("session-list", &["session", "list"]);
    let named = |name: &str| list["sessions"].as_array().unwrap().iter().find(|one| one["name"] == name).cloned();
    assert_eq!(named("recorded").unwrap()["agent"]["id"], "s2");
    assert_eq!(list["sessions"].as_array().unwrap().len(), 3, "{list}");
}

#[test]
fn bursts_share_a_snapshot_and_limits_are_kept() {
    let world = World::on_git();
    world.write("f", "0");
    for (key, value) in [("moments.window", "1h"), ("moments.limit", "3")] {
        assert_eq!(world.run(["config", "set", key, value]).code, 0);
    }
    let mut agent = Agent::claude(&world, "s1");
    agent.patient = false;
    agent.start();
    settled(&world);
    let calls: Vec<String> = (0..3).map(|_| agent.before("Write")).collect();
    for (number, id) in calls.iter().enumerate() {
        world.write("f", number.to_string());
        agent.after("Write", id);
    }
    // Until it goes on.
    agent.before("Read");
    let moments = settled(&world);
    assert_eq!(moments[1]["snapshot"], moments[3]["snapshot"], "{moments:#?}");
    for number in 3..6 {
        agent.writes("f", &number.to_string());
    }
    agent.before("Read");
    let moments = settled(&world);
    assert!(moments[4]["snapshot"].is_string(), "{}", moments[4]);
    assert!(text(&moments[6], "reason").contains("moments.limit"), "{}", moments[6]);
    assert_eq!(cat(&world, text(&moments[6], "id"), "f").as_deref(), Some("3"), "the nearest before it");
}

#[test]
fn a_moment_made_by_hand_means_just_now_also_while_a_tool_runs() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.prompt("go");
    let id = agent.before("Bash");
    world.write("f", "in the middle");
    let session = settled(&world).pop().unwrap()["session"].as_str().unwrap().to_owned();
    let ran = Ran::of(world.command(["moment", "-m", "mine"]).env("AH_SESSION", &session));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(world.fs(["cat", "mine", "f"]), "in the middle");
    agent.after("Bash", &id);
    let made = settled(&world).into_iter().find(|moment| moment["label"] == "mine").unwrap();
    assert_ne!(made["inexact"], true, "{made}");
}

#[test]
fn calls_with_long_ids_or_numbers_of_their_turn_are_told_apart() {
    let world = World::new();
    let agent = Agent::claude(&world, "s1");
    agent.start();
    let long = "x".repeat(300);
    for (turn, id) in
        [("p1", format!("{long}1")), ("p1", format!("{long}2")), ("p1", "call_0".into()), ("p2", "call_0".into())]
    {
        let tool = json!({"tool_name": "Bash", "tool_use_id": id, "prompt_id": turn, "tool_response": {}});
        agent.call("PostToolUse", tool.clone());
        // The same once more.
        agent.call("PostToolUse", tool);
    }
    assert_eq!(settled(&world).iter().filter(|moment| moment["kind"] == "tool").count(), 4);
}

#[test]
fn what_is_no_change_of_files_is_not_lost_with_a_shared_snapshot() {
    let world = World::new();
    world.write("f", "x");
    world.write("n/.git/HEAD", "ref: refs/heads/main\n");
    if !world.can("xattrs") {
        // Such a provider keeps none of this, and says so (`ah agent fs show`).
        return;
    }
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.writes("f", "y");
    let id = agent.before("Bash");
    world.write("n/.git/refs/heads/main", "work");
    agent.after("Bash", &id);
    let moments = settled(&world);
    let last = moments.iter().rfind(|moment| moment["kind"] == "tool").unwrap();
    let view = world.fs(["seek", text(last, "id")]);
    assert_eq!(fs::read_to_string(format!("{view}/n/.git/refs/heads/main")).unwrap(), "work");
    world.fs(["release", &view]);
}
