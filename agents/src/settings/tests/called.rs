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
        assert!(install(&target).unwrap().changed && !install(&target).unwrap().changed);
        let now = status(&target).unwrap();
        let count = events::of(agent, target.ah).unwrap().len();
        assert_eq!((now.installed, now.others), (Installed::Yes, count), "{agent}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!((text.matches("ah-hook").count(), text.matches("theirs").count()), (count, count), "{text}");
    }
}
