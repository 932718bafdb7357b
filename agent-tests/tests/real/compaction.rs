//! Claude Code compacts its conversation: what is before that can still be gone back to, and what comes after it, too.

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};

use crate::timeline::{Moment, moments};

/// When it compacts it asks for a summary of all up to its last turn, and goes on with that and the last turn.
const STORY: &str = "
name: compaction
steps:
  - prompt: One
  - say: I write.
  - tool: {name: Write, input: {file_path: a.txt, content: 'a1'}}
  - label: written
  - say: Written.
branches:
  - name: compact
    after: written
    steps: [prompt: {contains: Respond with TEXT ONLY}, say: <summary>a.txt was written.</summary>]
  - {name: before, after: written, steps: [prompt: Otherwise, say: Otherwise then.]}
conversations:
  - name: continued
    steps:
      - prompt: {contains: a.txt was written}
      - said: Written.
      - prompt: After
      - tool: {name: Bash, input: {command: 'printf b1 > b.txt', description: Add}}
      - label: added
      - say: Went on.
    branches:
      - {name: then, after: added, steps: [prompt: And more, say: More it is.]}
";

#[test]
fn before_and_after_it() {
    without_network("compaction::before_and_after_it", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        let agent = Agent::Claude;
        agent.install(&world);
        let server = Server::start(&world, agent, STORY);
        world.ah(["agent", "hooks", "install", agent.name()]);
        well(&agent.prompt(&world, &server, &[], "One").output().unwrap());
        well(&agent.prompt(&world, &server, &["--continue"], "/compact").output().unwrap());
        well(&agent.prompt(&world, &server, &["--continue"], "After").output().unwrap());
        let all = moments(&world);
        let tools: Vec<&Moment> = all.iter().filter(|moment| moment.kind() == "tool").collect();
        assert_eq!(tools.len(), 2, "{all:#?}");
        for (number, (moment, instruction, answer)) in
            [(tools[0], "Otherwise", "Otherwise then."), (tools[1], "And more", "More it is.")].into_iter().enumerate()
        {
            let mut branch = world.command("ah");
            let name = format!("way-{number}");
            branch.args(["session", "branch", moment.id(), "--name", &name, "-m", instruction, "--run"]);
            agent.ask(&mut branch, &world, &server);
            let output = branch.output().unwrap();
            well(&output);
            assert!(String::from_utf8_lossy(&output.stdout).contains(answer), "{output:?}");
        }
        server.passed();
    });
}
