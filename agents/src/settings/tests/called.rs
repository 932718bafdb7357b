//! Which hooks of ours an agent calls, and how often.

use super::*;

#[test]
fn of_two_hooks_of_ours_in_one_event_one_is_left() {
    for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
        let place = place();
        let target = place.target(agent, Scope::User);
        let file = install(&target).unwrap().file;
        // As two files that became one: of another `ah`, and with a hook of somebody's in its group.
        let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let theirs = serde_json::json!({"type": "command", "command": "theirs"});
        for hook in events::of(agent, Path::new("/old/ah")).unwrap() {
            let ours = serde_json::json!({"type": "command", "command": hook.command});
            let group = serde_json::json!({"hooks": [ours, theirs]});
            value["hooks"][&hook.event].as_array_mut().unwrap().push(group);
        }
        std::fs::write(&file, value.to_string()).unwrap();
        assert_eq!(status(&target).unwrap().installed, Installed::Partly, "{agent}");
        let change = install(&target).unwrap();
        // What stood behind one that went is another place's now, by which Codex trusts it.
        assert_eq!((change.changed, change.moved), (true, agent == Agent::Codex), "{agent}");
        assert!(!install(&target).unwrap().changed);
        let now = status(&target).unwrap();
        let count = events::of(agent, target.ah).unwrap().len();
        assert_eq!((now.installed, now.others), (Installed::Yes, count), "{agent}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!((text.matches("ah-hook").count(), text.matches("theirs").count()), (count, count), "{text}");
        assert_eq!(uninstall(&target).unwrap().moved, agent == Agent::Codex, "{agent}: they stood in front");
        assert!(!install(&target).unwrap().moved);
    }
}

#[test]
fn a_hook_that_is_not_always_run_counts_as_none() {
    const COMMAND: &str = "\"type\": \"command\",";
    for (from, to, all) in [
        ("\"hooks\": [", "\"matcher\": \"Write|Edit\", \"hooks\": [", false),
        ("\"hooks\": [", "\"matcher\": null, \"hooks\": [", false),
        (COMMAND, "\"type\": \"prompt\",", false),
        (COMMAND, "\"type\": \"command\", \"if\": \"Bash(git *)\",", false),
        (COMMAND, "", false),
        ("\"hooks\": [", "\"matcher\": \"\", \"hooks\": [", true),
        ("\"hooks\": [", "\"matcher\": \"*\", \"hooks\": [", true),
    ] {
        let place = place();
        let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Claude, Scope::User) };
        let file = install(&target).unwrap().file;
        let text = std::fs::read_to_string(&file).unwrap();
        let (before, after) = text.split_once("\"PostToolUse\": [").unwrap();
        std::fs::write(&file, format!("{before}\"PostToolUse\": [{}", after.replacen(from, to, 1))).unwrap();
        let now = status(&target).unwrap();
        let wanted = if all { Installed::Yes } else { Installed::Partly };
        assert_eq!((now.installed, now.calls.contains(&"PostToolUse".to_owned())), (wanted, all), "{to}");
        assert_eq!(install(&target).unwrap().changed, !all, "{to}");
        assert_eq!((status(&target).unwrap().installed, status(&target).unwrap().calls.len()), (Installed::Yes, 8));
    }
}

#[test]
fn a_hook_that_is_not_always_run_is_mended_where_it_stands() {
    let theirs = serde_json::json!({"type": "command", "command": "theirs"});
    let ours = |command: &str| serde_json::json!({"type": "command", "command": command});
    for (group, shared, kind, condition, moves) in [
        (Some("Bash"), false, Some("command"), None, false),
        (None, true, Some("prompt"), Some("Bash(git *)"), false),
        (Some("*"), true, None, None, false),
        // Its matcher is theirs, too.
        (Some("Bash"), true, Some("command"), None, true),
    ] {
        let place = place();
        let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Codex, Scope::User) };
        let hook = &events::of(Agent::Codex, target.ah).unwrap()[2];
        let mut own = ours(&hook.command);
        match kind {
            Some(kind) => own["type"] = kind.into(),
            None => drop(own.as_object_mut().unwrap().remove("type")),
        }
        condition.inspect(|condition| own["if"] = (*condition).into());
        let mut first = serde_json::json!({"hooks": if shared { vec![own, theirs.clone()] } else { vec![own] }});
        group.inspect(|matcher| first["matcher"] = (*matcher).into());
        let all = serde_json::json!({"hooks": {&hook.event: [first, {"hooks": [theirs]}]}});
        let file = place.write(Agent::Codex, &all.to_string());
        let change = install(&target).unwrap();
        assert_eq!((change.changed, change.moved), (true, moves), "{all}");
        let now = status(&target).unwrap();
        assert_eq!((now.installed, now.others), (Installed::Yes, 1 + usize::from(shared)), "{all}");
        let now: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let first = &now["hooks"][&hook.event][0];
        assert_eq!(first["hooks"].as_array().unwrap().contains(&ours(&hook.command)), !moves, "{now}");
    }
}
