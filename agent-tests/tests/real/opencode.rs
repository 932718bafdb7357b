//! The plugin that opencode gets, with its events as opencode 1.18.33 gave them by hand. opencode itself is not run here: with what it needs it is 350 MB.

use std::os::unix::fs::PermissionsExt;

use ah_agent_tests::agents::node_folder;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::skip;
use ah_agent_tests::world::{World, well};

use crate::timeline::{Moment, moments};

/// A prompt, for which a sub-agent with a session of its own runs a tool.
const EVENTS: &str = r#"
import { Ah } from "./ah.mjs"
const plugin = await Ah({ directory: process.cwd() })
const event = (type, properties) => plugin.event({ event: { type, properties } })
const says = (sessionID, text) => plugin["chat.message"]({ sessionID }, { message: { id: "m" + text }, parts: [{ type: "text", text }] })
const uses = async (sessionID, tool) => {
  await plugin["tool.execute.before"]({ sessionID, tool, callID: "c" + tool })
  await plugin["tool.execute.after"]({ sessionID, tool, callID: "c" + tool })
}
// Both at once.
await Promise.all([event("session.created", { sessionID: "ses_1", info: { id: "ses_1" } }), says("ses_1", "One")])
await plugin["tool.execute.before"]({ sessionID: "ses_1", tool: "task", callID: "ctask" })
await event("session.created", { sessionID: "ses_2", info: { id: "ses_2", parentID: "ses_1" } })
await says("ses_2", "Two")
await uses("ses_2", "bash")
await event("session.idle", { sessionID: "ses_2" })
await plugin["tool.execute.after"]({ sessionID: "ses_1", tool: "task", callID: "ctask" })
await event("session.idle", { sessionID: "ses_1" })
"#;

#[test]
fn what_a_sub_agent_does_belongs_to_the_session_that_asked_for_it() {
    without_network("opencode::what_a_sub_agent_does_belongs_to_the_session_that_asked_for_it", || {
        if node_folder().is_none() {
            return skip("needs node; `scripts/setup agents` installs it");
        }
        let world = World::new();
        world.ah(["agent", "hooks", "install", "opencode"]);
        let plugin = world.path("home/.config/opencode/plugins/ah.js");
        // What is told later overtakes a session's start only if it does not wait for it: that takes its time here.
        let plugin = std::fs::read_to_string(plugin).unwrap();
        let ah = plugin.lines().find_map(|line| line.strip_prefix("const AH = ")).unwrap();
        let slow = world.path("bin/slow");
        let script = "read -r event; case $event in *SessionStart*) sleep 0.3;; esac; printf %s \"$event\" |";
        std::fs::write(&slow, format!("#!/bin/sh\n{script} {ah} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Where nothing says of what kind a script is.
        let plugin = plugin.replace(ah, &format!("\"{}\"", slow.display()));
        std::fs::write(world.path("bin/ah.mjs"), plugin).unwrap();
        std::fs::write(world.path("bin/events.mjs"), EVENTS).unwrap();
        well(&world.command("node").arg(world.path("bin/events.mjs")).output().unwrap());
        let moments = moments(&world);
        let kinds: Vec<&str> = moments.iter().map(Moment::kind).collect();
        assert_eq!(kinds, ["session-start", "prompt", "tool", "tool", "stop"]);
        let sessions = world.json(&["session", "list"]);
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1, "{sessions}");
    });
}
